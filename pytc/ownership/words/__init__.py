"""What holds a leaf, as a person would say it. Nothing is decided here.

reasons          what holds the leaves of a call: among all objects, or at a glance
holders          from what refers to a leaf up to something with a name
variables        variables of the callers that are read again, and where
referrers        who refers to an object, and who to those in turn
paths            the containers that lead from the arguments down to a leaf
"""
