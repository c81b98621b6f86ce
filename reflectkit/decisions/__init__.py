"""Decision models: questions about a state, with a probability for each option, in two protocols.

`questions.py` has what is asked, and the prompt that it is read in. `systemone.py` and `openai_form.py` are the two
forms of a request and its answer, for servers and for clients.
"""
