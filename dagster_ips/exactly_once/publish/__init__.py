"""Write a result on a branch, check it, publish it by fast-forward, and commit what it was made of."""
