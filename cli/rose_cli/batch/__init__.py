"""`rose batch run`: a file of requests becomes a file of answers, without a gateway."""
