"""Decision models: questions about a state, with a probability for each option, in two protocols.

`questions.py` has the questions, their prompts and their answers. `systemone.py` and
`openai_form.py` are the two forms of a request and its reply, for servers and for clients.
"""
