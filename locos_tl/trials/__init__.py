"""What is asked: trials, needles, haystacks."""
