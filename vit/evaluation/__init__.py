"""How good is it: the score that training prints at its end and that evaluate prints again."""
