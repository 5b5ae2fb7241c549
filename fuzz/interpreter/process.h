/* Operations in which a child or a thread carries out a part of the program. The creator
 * waits for it, so that there is one order of events. */

/* A part of the program. */
struct block { void (*run)(const struct block *block); int from, to; };

static void enter_part(const char *path, int number)
{
    char own[64];
    snprintf(own, sizeof own, "%s.%d", path, number);
    memcpy(log_path, own, sizeof log_path);
    log_children = 0;
    log_length = 0;
}

static void run_in_child(const struct block *block, int number)
{
    char path[64];
    memcpy(path, log_path, sizeof path);
    enter_part(path, number);
    block->run(block);
    _exit(number % 64);
}

static int child_of_clone(void *argument)
{
    struct { const struct block *block; int number; } *it = argument;
    /* Its parent may be in a handler on its own: the child's handlers would overwrite what the
     * child goes on to use. */
    take_signal_stack();
    run_in_child(it->block, it->number);
    return 0;
}

static void result_of_wait(pid_t child)
{
    int status = 0;
    pid_t waited;
    while ((waited = waitpid(child, &status, __WALL)) < 0 && errno == EINTR)
        continue;
    if (waited < 0)
        result(" wait %s", strerrorname_np(errno));
    else if (WIFSIGNALED(status))
        result(" killed %d", WTERMSIG(status));
    else
        result(" exit %d", WEXITSTATUS(status));
}

/* A child carries out the block: 0 fork, 1 the system call fork, 2 clone() with a stack
 * from a mapping, 3 the system call clone, 4 _Fork. */
OPERATION fork_child(const struct block *block, long how)
{
    int number = ++log_children;
    pid_t child;
    char *stack = NULL;
    switch ((unsigned long)how % 5) {
    case 0:
        child = fork();
        break;
    case 1:
        child = syscall(SYS_fork);
        break;
    case 2: {
        struct { const struct block *block; int number; } it = {block, number};
        stack = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        child = clone(child_of_clone, stack + 64 * PAGE, SIGCHLD, &it);
        break;
    }
    case 3:
        child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        break;
    default:
        child = _Fork();
    }
    if (child == 0)
        run_in_child(block, number);
    if (child < 0)
        result_of(-1);
    else
        result_of_wait(child);
    if (stack)
        munmap(stack, 64 * PAGE);
}

struct part { const struct block *block; int number; char path[64], *stack; };

/* The end of this thread's stack, where that was mapped for it. */
static __thread char *own_stack;

static void *run_in_thread(void *argument)
{
    struct part *part = argument;
    take_signal_stack();
    own_stack = part->stack;
    enter_part(part->path, part->number);
    part->block->run(part->block);
    give_signal_stack();
    return part;
}

/* A thread carries out the block: on a stack of the C library's (0), or on one that was
 * mapped for it (1). */
OPERATION thread(const struct block *block, long how)
{
    struct part part = {.block = block, .number = ++log_children};
    memcpy(part.path, log_path, sizeof part.path);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    char *stack = NULL;
    if (how & 1) {
        stack = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        pthread_attr_setstack(&attributes, stack, 64 * PAGE);
        part.stack = stack;
    }
    pthread_t made;
    void *answer = NULL;
    int error = pthread_create(&made, &attributes, run_in_thread, &part);
    if (!error)
        error = pthread_join(made, &answer);
    pthread_attr_destroy(&attributes);
    result(" %s", error ? strerrorname_np(error) : answer == &part ? "0" : "another answer");
    if (stack)
        munmap(stack, 64 * PAGE);
}
