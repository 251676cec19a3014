"""Training: a few small modules on Hugging Face Accelerate.

    config        everything that decides a run
    randomness    sequences as a function of their number
    task          what is learnt
    objective     loss and right labels
    schedule      the learning rate
    trainer       one update, accuracy, state
    recorded      an update as one CUDA graph
    run_folder    log, checkpoint, exact resume
    processes     one or many
    loop          a whole run
    throughput    floating-point operations, and the rate of the device

`from everyformer.train.loop import train` needs the extra `everyformer[train]`.
"""
