"""Whether a learner learns: small games of many kinds, their optimum, and a score for every player."""
