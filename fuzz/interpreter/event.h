/* Operations in which control goes elsewhere: signals, stacks, threads that work beside. */

/* What nested operations of the same thread would overwrite. */
struct log_state { char line[512], path[64]; size_t length; int children; };

static void log_save(struct log_state *state)
{
    state->length = log_length < sizeof state->line ? log_length : sizeof state->line;
    memcpy(state->line, log_line, state->length);
    memcpy(state->path, log_path, sizeof log_path);
    state->children = log_children;
}

static void log_restore(const struct log_state *state)
{
    memcpy(log_line, state->line, state->length);
    log_length = state->length;
    memcpy(log_path, state->path, sizeof log_path);
    log_children = state->children;
}

static __thread const struct block *handler_block;

static void run_in_handler(int number)
{
    (void)number;
    const struct block *block = handler_block;
    struct log_state state;
    log_save(&state);
    enter_part(state.path, 9999);
    block->run(block);
    log_restore(&state);
}

/* A signal handler carries out the block, on the thread's signal stack or, with flag 1,
 * on one that is mapped for it. */
OPERATION in_handler(const struct block *block, long how)
{
    struct sigaction action = {.sa_handler = run_in_handler, .sa_flags = SA_ONSTACK | SA_NODEFER}, before;
    stack_t own = {0}, old;
    if (how & 1) {
        own.ss_size = 64 * PAGE;
        own.ss_sp = mmap(NULL, own.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sigaltstack(&own, &old) < 0) {
            /* Within a handler on the stack that would be replaced. */
            munmap(own.ss_sp, own.ss_size);
            own.ss_sp = NULL;
        }
    }
    const struct block *around = handler_block;
    handler_block = block;
    sigaction(SIGUSR1, &action, &before);
    result_of(raise(SIGUSR1));
    handler_block = around;
    sigaction(SIGUSR1, &before, NULL);
    if (own.ss_sp) {
        sigaltstack(&old, NULL);
        munmap(own.ss_sp, own.ss_size);
    }
}

/* Carries out the block so deep in a stack that was mapped for this thread, with nothing
 * of that stack below: a call touches the next page wherever it may. */
OPERATION at_depth(const struct block *block, long bytes)
{
    volatile char *here = __builtin_alloca(16 + (unsigned long)bytes % (2 * PAGE));
    here[0] = 0;
    struct log_state state;
    log_save(&state);
    char *page = (char *)((uintptr_t)__builtin_frame_address(0) & ~(PAGE - 1)) - 3 * PAGE;
    if (own_stack && page > own_stack && page < own_stack + 64 * PAGE)
        madvise(own_stack, page - own_stack, MADV_DONTNEED);
    enter_part(state.path, 8888);
    block->run(block);
    log_restore(&state);
}

/* A child that shares memory carries out the block on a stack of its own, while this
 * process waits: clone with CLONE_VM and CLONE_VFORK. */
OPERATION sharing_child(const struct block *block, long how)
{
    struct log_state state;
    log_save(&state);
    struct { const struct block *block; int number; } it = {block, ++state.children};
    char *stack = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    int own_signal_stack = signal_stack;
    pid_t child = clone(child_of_clone, stack + 64 * PAGE, CLONE_VM | CLONE_VFORK | (how & 1 ? CLONE_FILES : 0) | SIGCHLD, &it);
    int error = errno;
    if (signal_stack != own_signal_stack)
        atomic_store(&signal_stack_taken[signal_stack], 0);
    signal_stack = own_signal_stack;
    log_restore(&state);
    errno = error;
    if (child < 0)
        result_of(-1);
    else
        result_of_wait(child);
    munmap(stack, 64 * PAGE);
}

static char *barrier_start, *barrier_end;
static atomic_long barrier_faults;

static void on_barrier(int number, siginfo_t *information, void *context)
{
    char *at = information->si_addr;
    if (at < barrier_start || at >= barrier_end) {
        on_fault(number, information, context);
        return;
    }
    atomic_fetch_add(&barrier_faults, 1);
    mprotect((char *)((uintptr_t)at & ~(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE);
}

/* Takes access away (flag 1: writing only) and has a handler give it back page by page,
 * as collectors of garbage do. Readable and writeable afterwards. */
OPERATION barrier(long number, long page, long pages, long seed, long flags)
{
    FIND_SPAN(span, number, page, pages);
    if (!is_one_mapping(&span) || mprotect(span.at, span.pages * PAGE, flags & 1 ? PROT_READ : PROT_NONE)) {
        result(" -");
        return;
    }
    struct sigaction action = {.sa_sigaction = on_barrier, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER}, before;
    barrier_start = span.at;
    barrier_end = span.at + span.pages * PAGE;
    atomic_store(&barrier_faults, 0);
    sigaction(SIGSEGV, &action, &before);
    struct run_length run = {0};
    for (long i = 0; i < span.pages; i++) {
        struct access access = {.at = span.at + i * PAGE, .page = i, .value = seed + i};
        char letter = mix(seed ^ i) % 3 ? fault_of(poke_word, &access) : 0;
        run_add_letter(&run, letter ? letter : 'w');
    }
    sigaction(SIGSEGV, &before, NULL);
    run_end(&run);
    result(" %ld", atomic_load(&barrier_faults));
    barrier_start = barrier_end = NULL;
    mprotect(span.at, span.pages * PAGE, PROT_READ | PROT_WRITE);
    mark_pieces(&span);
}

/* A robust mutex in a page of a region: a thread takes it and ends. Not in shared memory, where the kernel does not mark
 * it while its page is paged out (README, Limits). */
static void *die_with_mutex(void *mutex)
{
    pthread_mutex_lock(mutex);
    return NULL;
}

OPERATION robust_mutex(long number, long page, long flags)
{
    FIND_SPAN(span, number, page, 1);
    if (span.shared[0]) {
        result(" -");
        return;
    }
    char letter = fault_of(fill, &(struct access){.at = span.at, .seed = 0});
    if (letter) {
        result(" %c", letter);
        return;
    }
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_t *mutex = (pthread_mutex_t *)(span.at + 128);
    pthread_mutex_init(mutex, &attributes);
    pthread_attr_t thread_attributes;
    pthread_attr_init(&thread_attributes);
    char *stack = NULL;
    if (flags & 1) {
        stack = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        pthread_attr_setstack(&thread_attributes, stack, 64 * PAGE);
    }
    pthread_t made;
    int error = pthread_create(&made, &thread_attributes, die_with_mutex, mutex);
    if (!error)
        pthread_join(made, NULL);
    if (flags & 2)
        churn(8);
    error = error ? error : pthread_mutex_lock(mutex);
    result(" %s", error ? strerrorname_np(error) : "0");
    if (error == EOWNERDEAD)
        pthread_mutex_consistent(mutex);
    pthread_mutex_unlock(mutex);
    if (stack)
        munmap(stack, 64 * PAGE);
    fault_of(fill, &(struct access){.at = span.at, .seed = 0});
}

/* Threads that write and verify a region of their own beside everything else; meanwhile
 * the region is not there for other operations. */
static struct stirrer { pthread_t thread; struct region region; atomic_int stop, runs; } stirrers[REGIONS];

static void *run_stirrer(void *argument)
{
    struct stirrer *own = argument;
    int number = own - stirrers;
    snprintf(log_path, sizeof log_path, "S%d", number);
    uint64_t round = 0;
    for (long i = 0; i < own->region.pages; i++)
        fill_page((uint64_t *)(own->region.base + i * PAGE), number + 8, i);
    while (!atomic_load(&own->stop)) {
        round++;
        for (long i = 0; i < own->region.pages; i++) {
            volatile uint64_t *words = (uint64_t *)(own->region.base + i * PAGE);
            if (round > 1 && words[5] != mix((round - 1) ^ i << 8)) {
                wrong("page %ld of region %d in round %ld", i, number, (long)round);
                return NULL;
            }
            words[5] = mix(round ^ i << 8);
        }
    }
    for (long i = 0; i < own->region.pages; i++)
        fill_page((uint64_t *)(own->region.base + i * PAGE), number + 16, i);
    return NULL;
}

/* Starts such a thread on a region, or stops it. */
OPERATION stir(long number)
{
    number = 1 + (unsigned long)number % (REGIONS - 1);
    struct stirrer *stirrer = &stirrers[number];
    if (stirrer->region.pages) {
        if (atomic_load(&stirrer->runs) != getpid()) {
            result(" -");
            return;
        }
        atomic_store(&stirrer->stop, 1);
        pthread_join(stirrer->thread, NULL);
        regions[number] = stirrer->region;
        stirrer->region.pages = 0;
        result(" stops");
        return;
    }
    FIND_SPAN(span, number, 0, LARGEST_REGION);
    /* One that cannot be written throughout, or is not this process's alone, is left. */
    for (long i = 0; i < span.pages; i++)
        if (span.shared[i] || fault_of(write_byte, &(struct access){.at = span.at + i * PAGE})) {
            result(" -");
            return;
        }
    stirrer->region = regions[number];
    regions[number] = (struct region){0};
    atomic_store(&stirrer->stop, 0);
    atomic_store(&stirrer->runs, getpid());
    result(" %d", pthread_create(&stirrer->thread, NULL, run_stirrer, stirrer));
}

/* A child carries out the block while this process presses on its own memory. */
OPERATION fork_beside(const struct block *block, long megabytes)
{
    int number = ++log_children;
    pid_t child = fork();
    if (child == 0)
        run_in_child(block, number);
    churn(megabytes);
    if (child < 0)
        result_of(-1);
    else
        result_of_wait(child);
}

/* A child executes this program anew, which carries out the block: 0 fork and exec, 1
 * vfork and exec, 2 posix_spawn. Its memory is fresh; it has the files. */
static char *program_words[6];

OPERATION exec_child(const struct block *block, long how)
{
    struct log_state state;
    log_save(&state);
    char path[64], id[16];
    int number = ++log_children;
    snprintf(path, sizeof path, "%.50s.%d", log_path, number);
    snprintf(id, sizeof id, "%d", block->from);
    char *words[] = {program_words[0], program_words[1], program_words[2], path, id, NULL};
    pid_t child;
    int error = 0;
    switch ((unsigned long)how % 3) {
    case 0:
        child = fork();
        if (child == 0) {
            execv("/proc/self/exe", words);
            _exit(126);
        }
        break;
    case 1:
        child = vfork();
        if (child == 0) {
            execv("/proc/self/exe", words);
            _exit(126);
        }
        break;
    default:
        error = posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ);
        if (error)
            child = -1;
    }
    if (child < 0)
        result(" %s", strerrorname_np(error ? error : errno));
    else
        result_of_wait(child);
}
