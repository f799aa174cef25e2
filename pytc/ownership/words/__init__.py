"""What holds a leaf, as a person would say it. Nothing is decided here.

holders          from what refers to a leaf up to something with a name
variables        variables of the callers that are read again, and where
referrers        who refers to an object, and who to those in turn
paths            the containers that lead from the arguments down to a leaf
"""
