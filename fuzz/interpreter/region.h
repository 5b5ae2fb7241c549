/* Where operations work: regions, which are numbered, and files.
 *
 * Region 0 is a range of fixed addresses that nothing else uses: there holes stay holes,
 * and every call has a definite result. All others are where the kernel placed them, and
 * consist of mapped pages only, since what others map may come to lie in a hole.
 *
 * Arguments are taken modulo what there is, so that every operation means something
 * whatever was removed before it. */

#define REGIONS 16
#define LARGEST_REGION 2048l
#define FIXED_BASE ((char *)0x100000000000)

struct region { char *base; long pages; };
static struct region regions[REGIONS] = {{FIXED_BASE, LARGEST_REGION}};

/* Which mapping a page belongs to: equal numbers are one mapping of the kernel's for
 * certain, which mremap requires. 0: nothing is mapped. */
static uint32_t mapping_of[REGIONS][LARGEST_REGION];
static uint32_t mappings;

/* Whether a page is anything else than private anonymous memory: others may see it, or
 * take it away. */
static uint8_t shared_page[REGIONS][LARGEST_REGION];

struct span {
    struct region *region;
    uint32_t *mapping;
    uint8_t *shared;
    char *at;
    long page, pages;
};

static int find_span(long number, long page, long pages, struct span *span)
{
    struct region *region = &regions[(unsigned long)number % REGIONS];
    if (!region->pages)
        return 0;
    page = (unsigned long)page % region->pages;
    if (pages < 1)
        pages = 1;
    if (pages > region->pages - page)
        pages = region->pages - page;
    long n = region - regions;
    *span = (struct span){region, mapping_of[n] + page, shared_page[n] + page, region->base + page * PAGE, page, pages};
    return 1;
}

/* The span; without one the operation has no effect, and its log line states that. */
#define FIND_SPAN(name, number, page, pages)                                                   \
    struct span name;                                                                          \
    do {                                                                                       \
        if (!find_span(number, page, pages, &name)) {                                          \
            result(" -");                                                                      \
            return;                                                                            \
        }                                                                                      \
    } while (0)

static struct region *empty_region(long number)
{
    struct region *region = &regions[(unsigned long)number % REGIONS];
    return region->pages ? NULL : region;
}

/* The span is a mapping of its own from now on. */
UNUSED static void mark_mapped(const struct span *span, int shared)
{
    mappings++;
    for (long i = 0; i < span->pages; i++) {
        span->mapping[i] = mappings;
        span->shared[i] = shared;
    }
}

UNUSED static void mark_unmapped(const struct span *span)
{
    for (long i = 0; i < span->pages; i++)
        span->mapping[i] = 0;
}

/* Each page of the span may be a mapping of its own from now on: it had other access than those
 * beside it, and the kernel does not always merge mappings of a child's child again. */
UNUSED static void mark_pieces(const struct span *span)
{
    for (long i = 0; i < span->pages; i++)
        if (span->mapping[i])
            span->mapping[i] = ++mappings;
}

/* Pages of the span are other mappings than those beside them from now on: their access
 * or their advice changed. */
UNUSED static void mark_split(const struct span *span)
{
    uint32_t before = 0;
    for (long i = 0; i < span->pages; i++) {
        uint32_t now = span->mapping[i];
        if (now && now != before)
            mappings++;
        before = now;
        if (now)
            span->mapping[i] = mappings;
    }
}

UNUSED static int is_one_mapping(const struct span *span)
{
    for (long i = 0; i < span->pages; i++)
        if (!span->mapping[i] || span->mapping[i] != span->mapping[0])
            return 0;
    return 1;
}

/* Two files on a disk, one memfd with contents, one without. */
#define FILES 4
#define FILE_PAGES 64l
static int files[FILES];

UNUSED static void make_files(void)
{
    for (int f = 0; f < FILES; f++) {
        files[f] = LOG_FD + 1 + f;
        /* An executed child has them from its parent. */
        if (fcntl(files[f], F_GETFD) >= 0)
            continue;
        int fd;
        if (f < 2)
            fd = open(".", O_TMPFILE | O_RDWR, 0600);
        else
            fd = memfd_create("fuzz", 0);
        if (fd < 0 || ftruncate(fd, FILE_PAGES * PAGE) < 0)
            _exit(4);
        dup2(fd, files[f]);
        close(fd);
        uint64_t page[PAGE / 8];
        for (long i = 0; f != 3 && i < FILE_PAGES; i++) {
            fill_page(page, 1000 + 8 * f + 3, i);
            if (pwrite(files[f], page, PAGE, i * PAGE) != PAGE)
                _exit(4);
        }
    }
}
