"""The nouns, the two protocols and the one interaction loop. Imports no torch and nothing above itself."""
