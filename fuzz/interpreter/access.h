/* Operations that read and write memory. */

/* Fills pages from a seed; those that cannot be written are named. */
OPERATION stamp(long number, long page, long pages, long seed)
{
    FIND_SPAN(span, number, page, pages);
    struct run_length run = {0};
    for (long i = 0; i < span.pages; i++) {
        char letter = fault_of(fill, &(struct access){.at = span.at + i * PAGE, .seed = seed, .page = i});
        run_add_letter(&run, letter ? letter : 'w');
    }
    run_end(&run);
}

/* Writes one word of every `step`th page. */
OPERATION poke(long number, long page, long pages, long step, long seed)
{
    FIND_SPAN(span, number, page, pages);
    struct run_length run = {0};
    for (long i = 0; i < span.pages; i += 1 + (unsigned long)step % 7) {
        struct access access = {.at = span.at + i * PAGE, .page = mix(seed + i) >> 1, .value = mix(seed ^ i)};
        char letter = fault_of(poke_word, &access);
        run_add_letter(&run, letter ? letter : 'w');
    }
    run_end(&run);
}

static void sum_span(const struct span *span)
{
    struct run_length run = {0};
    for (long i = 0; i < span->pages; i++) {
        struct access access = {.at = span->at + i * PAGE};
        char letter = fault_of(hash, &access);
        char item[8];
        if (letter)
            snprintf(item, sizeof item, "%c", letter);
        else if (!access.value)
            snprintf(item, sizeof item, "0");
        else
            snprintf(item, sizeof item, "%04x", (unsigned)(access.value >> 48));
        run_add(&run, item);
    }
    run_end(&run);
}

/* Reads pages and logs the contents of each. */
OPERATION sum(long number, long page, long pages)
{
    FIND_SPAN(span, number, page, pages);
    sum_span(&span);
}

/* Reads everything. */
OPERATION sum_all(void)
{
    for (int r = 0; r < REGIONS; r++) {
        struct span span;
        if (!find_span(r, 0, LARGEST_REGION, &span))
            continue;
        result(" [%d]", r);
        sum_span(&span);
    }
}

/* Copies between pages that may overlap in no way but by chance of the arguments. */
OPERATION copy(long number, long page, long pages, long to_number, long to_page)
{
    FIND_SPAN(from, number, page, pages);
    FIND_SPAN(to, to_number, to_page, from.pages);
    struct run_length run = {0};
    for (long i = 0; i < from.pages && i < to.pages; i++) {
        uint64_t buffer[PAGE / 8];
        char letter = fault_of(copy_out, &(struct access){.at = from.at + i * PAGE, .buffer = buffer});
        if (!letter)
            letter = fault_of(copy_in, &(struct access){.at = to.at + i * PAGE, .buffer = buffer});
        run_add_letter(&run, letter ? letter : 'c');
    }
    run_end(&run);
}

static char *churn_base;
static long churn_pages;
static uint64_t churn_round;

/* Touches more memory than the frames hold, so that everything else leaves them. */
OPERATION churn(long megabytes)
{
    if (!churn_base) {
        churn_pages = (1 + (unsigned long)megabytes % 64) * 256;
        churn_base = mmap(NULL, churn_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (churn_base == MAP_FAILED)
            _exit(5);
        churn_round = 0;
    }
    for (long i = 0; i < churn_pages; i++) {
        uint64_t *words = (uint64_t *)(churn_base + i * PAGE);
        if (words[7] != (churn_round ? mix(churn_round ^ i) : 0))
            wrong("page %ld of the churn", i);
        words[7] = mix((churn_round + 1) ^ i);
    }
    churn_round++;
}

struct pressure { pthread_t thread; long number, pages; };
static atomic_int pressure_stop;

static void *press(void *argument)
{
    struct pressure *own = argument;
    snprintf(log_path, sizeof log_path, "P%ld", own->number);
    char *at = mmap(NULL, own->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        _exit(5);
    for (uint64_t round = 0;; round++)
        for (long i = 0; i < own->pages; i++) {
            if (atomic_load_explicit(&pressure_stop, memory_order_relaxed))
                return NULL;
            uint64_t *words = (uint64_t *)(at + i * PAGE);
            if (words[3] != (round ? mix(round ^ i) : 0)) {
                wrong("page %ld in round %ld of thread %ld", i, (long)round, own->number);
                return NULL;
            }
            words[3] = mix((round + 1) ^ i);
            words[(i * 8 + 64) % 512] = words[3] + 1;
        }
}

/* Starts threads that touch memory until the program ends, and check it. */
OPERATION pressure(long threads, long megabytes)
{
    static struct pressure all[4];
    for (long t = 0; t < threads && t < 4; t++) {
        all[t] = (struct pressure){.number = t, .pages = megabytes * 256 / threads};
        if (all[t].thread || pthread_create(&all[t].thread, NULL, press, &all[t]))
            result(" none");
    }
}
