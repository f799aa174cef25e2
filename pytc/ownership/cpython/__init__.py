"""What is known of CPython and of its objects, measured or asked of the interpreter rather than written down.

interpreter      what the interpreter is and does, measured at import; reading a frame's variables
lists            lists compared by what is in them, all at once
native           classes written in C, and what is known of them
plain            attributes and items that are read and stored without any code being run
facts            what holds of a class until it is changed, asked once
"""
