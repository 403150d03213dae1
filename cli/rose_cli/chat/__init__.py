"""`rose chat`: a real model on this machine, and a page to talk to it."""
