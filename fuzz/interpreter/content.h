/* What pages hold, and access to pages that may not be there. */

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* One word of a page that was filled from `seed`. By the seed a page is noise, half
 * noise, one repeated value, or zeros: the kinds that a compressing store tells apart. */
static inline uint64_t word_of(uint64_t seed, long page, long word)
{
    switch (seed % 8) {
    case 0:
        return 0;
    case 1:
        return mix(seed ^ page);
    case 2:
        return mix(seed ^ page << 20 ^ word);
    default:
        return word & 1 ? seed + page : mix(seed ^ page << 20 ^ word);
    }
}

/* A fault of this thread's own is expected while `fault_expected`. */
static __thread volatile sig_atomic_t fault_expected;
static __thread sigjmp_buf fault_return;
static __thread volatile int fault_signal, fault_code;
static __thread char *volatile fault_address;

static void on_fault(int number, siginfo_t *information, void *context)
{
    (void)context;
    if (!fault_expected) {
        wrong("signal %d code %d", number, information->si_code);
        signal(number, SIG_DFL);
        return;
    }
    fault_signal = number;
    fault_code = information->si_code;
    fault_address = information->si_addr;
    siglongjmp(fault_return, 1);
}

/* Every thread that touches memory has a stack for signals; static, so that it is there
 * when the thread's own is gone. */
static char signal_stacks[32][1 << 16] __attribute__((aligned(16)));
static atomic_int signal_stack_taken[32];
static __thread int signal_stack;

UNUSED static void take_signal_stack(void)
{
    int n = 0;
    while (atomic_exchange(&signal_stack_taken[n], 1))
        n = (n + 1) % 32;
    signal_stack = n;
    stack_t stack = {.ss_sp = signal_stacks[n], .ss_size = sizeof signal_stacks[n]};
    sigaltstack(&stack, NULL);
}

UNUSED static void give_signal_stack(void)
{
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    atomic_store(&signal_stack_taken[signal_stack], 0);
}

UNUSED static void catch_faults(void)
{
    /* SA_NODEFER: the handler is left by a jump that restores no mask. */
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    take_signal_stack();
}

UNUSED static char letter_of_fault(char *page)
{
    if (fault_address < page || fault_address >= page + PAGE)
        return '!';
    if (fault_signal == SIGSEGV)
        return fault_code == SEGV_MAPERR ? 'M' : fault_code == SEGV_ACCERR ? 'A' : fault_code == SEGV_PKUERR ? 'K' : '?';
    return fault_code == BUS_ADRERR ? 'E' : '?';
}

static void fill_page(volatile uint64_t *at, uint64_t seed, long page)
{
    for (long i = 0; i < PAGE / 8; i++)
        at[i] = word_of(seed, page, i);
}

static uint64_t hash_page(const volatile uint64_t *at)
{
    uint64_t hash = 0, any = 0;
    for (long i = 0; i < PAGE / 8; i++) {
        any |= at[i];
        hash = (hash ^ at[i]) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    return any ? hash | 1 : 0;
}

/* One access to a page. */
struct access {
    char *at;
    uint64_t seed, value;
    long page;
    uint64_t *buffer;
};

static void read_byte(struct access *access) { access->value = *(volatile uint8_t *)access->at; }
static void write_byte(struct access *access) { *(volatile uint8_t *)access->at = access->value; }
static void fill(struct access *access) { fill_page((volatile uint64_t *)access->at, access->seed, access->page); }
static void hash(struct access *access) { access->value = hash_page((volatile uint64_t *)access->at); }

static void poke_word(struct access *access)
{
    ((volatile uint64_t *)access->at)[access->page % (PAGE / 8)] = access->value;
}

static void copy_out(struct access *access)
{
    for (long i = 0; i < PAGE / 8; i++)
        access->buffer[i] = ((volatile uint64_t *)access->at)[i];
}

static void copy_in(struct access *access)
{
    for (long i = 0; i < PAGE / 8; i++)
        ((volatile uint64_t *)access->at)[i] = access->buffer[i];
}

/* Accesses a page; gives a letter for its fault, or 0: M nothing is mapped, A the access
 * is not allowed, K by a protection key, E beyond the end of a file, ! elsewhere. */
__attribute__((noinline, unused)) static char fault_of(void (*how)(struct access *), struct access *access)
{
    if (sigsetjmp(fault_return, 0)) {
        fault_expected = 0;
        return letter_of_fault(access->at);
    }
    fault_expected = 1;
    how(access);
    fault_expected = 0;
    return 0;
}

/* Items in order, repeats counted: "0*12 3fa2 M*3". */
struct run_length { char item[8]; long count; };

UNUSED static void run_end(struct run_length *run)
{
    if (run->count == 1)
        result(" %s", run->item);
    else if (run->count > 1)
        result(" %s*%ld", run->item, run->count);
    run->count = 0;
}

UNUSED static void run_add(struct run_length *run, const char *item)
{
    if (run->count && !strcmp(run->item, item)) {
        run->count++;
        return;
    }
    run_end(run);
    snprintf(run->item, sizeof run->item, "%s", item);
    run->count = 1;
}

UNUSED static void run_add_letter(struct run_length *run, char letter)
{
    char item[2] = {letter, 0};
    run_add(run, item);
}
