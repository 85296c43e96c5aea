"""Mutation testing: change the code in one place, run the tests that touch it, see if one fails.

    mutants    every small change of a file that some test should notice
    edits      the small changes of one statement
    touching   which tests execute which line, and how long they take
    running    one forked process per mutant
    controls   the unchanged source in the same setting, which must pass
    explained  survivors that no test can kill, with the reason
    groups     the packages that have a name on the command line, and their tests
    scores     the share of killed mutants, with its interval

This is our own code because the common tools do not fit. mutmut 3 compiles all mutants of a
function into the file, as extra functions of which an environment variable chooses one; it leaves
out the module level and decorated functions and classes, such as every dataclass and estimator.
cosmic-ray writes each mutant over the source file and starts the test command anew, which takes
five seconds here before the first test, and cannot run while the tree is in use. Here a parent
process imports torch and the other libraries once and forks for each mutant, and the mutated source
never reaches the tree.
"""
