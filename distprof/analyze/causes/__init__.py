"""Who held whom up, and why: a finder per kind of cause, and the verdict."""
