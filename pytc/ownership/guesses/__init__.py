"""Which leaves live on after a call, as far as its place in the code shows. The proof has the last word.

survivors        leaves that a plan had better not take over; surviving: what is found frame by frame
read_again       what is read again of the containers that variables have
staying          which arguments will be the same at the next call, and which will be a result
loop             the loop around a call, and what it does each time around
repeats          whether other calls follow from the same place, and what is stored before
"""
