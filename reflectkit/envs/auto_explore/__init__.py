"""AutoExplore: find the file that answers a question, by walking a repository that cannot be left
or changed.
"""
