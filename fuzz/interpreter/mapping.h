/* Operations that change what is mapped, and how. */

#define FLAG_NORESERVE 1
#define FLAG_POPULATE 2
#define FLAG_LOCKED 4
#define FLAG_GROWSDOWN 8
#define FLAG_STACK 16
#define FLAG_NOREPLACE 32
/* Of a mapping that has no address asked for: below 2 GiB. */
#define FLAG_LOW 32

static int map_flags(long flags)
{
    return (flags & FLAG_NORESERVE ? MAP_NORESERVE : 0) | (flags & FLAG_POPULATE ? MAP_POPULATE : 0) |
           (flags & FLAG_LOCKED ? MAP_LOCKED : 0) | (flags & FLAG_STACK ? MAP_STACK : 0);
}

/* What is mapped: 0 private and 1 shared anonymous memory, then each file's, private and
 * shared. */
static int map_kind(long kind, int *fd)
{
    kind = (unsigned long)kind % (2 + 2 * FILES);
    *fd = kind < 2 ? -1 : files[(kind - 2) / 2];
    return (kind & 1 ? MAP_SHARED : MAP_PRIVATE) | (kind < 2 ? MAP_ANONYMOUS : 0);
}

/* Maps pages where the kernel likes; they become an empty region. */
OPERATION map(long number, long pages, long access, long kind, long flags, long file_page)
{
    struct region *region = empty_region(number);
    if (!region) {
        result(" -");
        return;
    }
    int fd, how = map_kind(kind, &fd);
    pages = 1 + (unsigned long)(pages - 1) % LARGEST_REGION;
    if (flags & FLAG_LOCKED)
        pages = 1 + pages % 8;
    how |= flags & FLAG_LOW ? MAP_32BIT : 0;
    void *at = mmap(NULL, pages * PAGE, access & 7, how | map_flags(flags), fd,
                    fd < 0 ? 0 : (unsigned long)file_page % FILE_PAGES * PAGE);
    if (at == MAP_FAILED) {
        result_of(-1);
        return;
    }
    *region = (struct region){at, pages};
    struct span span;
    find_span(number, 0, pages, &span);
    mark_mapped(&span, fd >= 0 || kind & 1);
    result(" 0");
}

/* Maps pages of a region anew. */
OPERATION map_fixed(long number, long page, long pages, long access, long kind, long flags, long file_page)
{
    if (flags & FLAG_LOCKED)
        pages = 1 + (unsigned long)pages % 8;
    FIND_SPAN(span, number, page, pages);
    int fd, how = map_kind(kind, &fd) | map_flags(flags);
    how |= flags & FLAG_NOREPLACE ? MAP_FIXED_NOREPLACE : MAP_FIXED;
    if (flags & FLAG_GROWSDOWN && fd < 0 && span.region == regions)
        how |= MAP_GROWSDOWN;
    void *at = mmap(span.at, span.pages * PAGE, access & 7, how, fd,
                    fd < 0 ? 0 : (unsigned long)file_page % FILE_PAGES * PAGE);
    if (at != MAP_FAILED)
        mark_mapped(&span, fd >= 0 || kind & 1);
    result_of(at == MAP_FAILED ? -1 : at != span.at);
}

/* Maps pages of region 0 by a hint, which the kernel follows where nothing is mapped. */
OPERATION map_hint(long page, long pages, long access, long kind)
{
    FIND_SPAN(span, 0, page, pages);
    int fd, how = map_kind(kind, &fd);
    char *at = mmap(span.at, span.pages * PAGE, access & 7, how, fd, 0);
    if (at == MAP_FAILED) {
        result_of(-1);
    } else if (at == span.at) {
        mark_mapped(&span, fd >= 0 || kind & 1);
        result(" there");
    } else {
        munmap(at, span.pages * PAGE);
        result(" elsewhere");
    }
}

/* Puts fresh memory where a hole would be in a region other than 0. */
static void refill(const struct span *span)
{
    if (span->region == regions)
        return;
    void *at = mmap(span->at, span->pages * PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != span->at)
        wrong("a hole cannot be filled: %s", at == MAP_FAILED ? strerrorname_np(errno) : "elsewhere");
    mark_mapped(span, 0);
}

/* Unmaps: in region 0 a hole stays; elsewhere it is seen to be one, then filled. */
OPERATION unmap(long number, long page, long pages)
{
    FIND_SPAN(span, number, page, pages);
    result_of(munmap(span.at, span.pages * PAGE));
    mark_unmapped(&span);
    char first = fault_of(read_byte, &(struct access){.at = span.at});
    char last = fault_of(write_byte, &(struct access){.at = span.at + (span.pages - 1) * PAGE});
    result(" %c %c", first ? first : '-', last ? last : '-');
    result_of(mprotect(span.at, span.pages * PAGE, PROT_READ));
    result_of(madvise(span.at, span.pages * PAGE, MADV_DONTNEED));
    refill(&span);
}

/* Unmaps a whole region, which is empty then. */
OPERATION unmap_region(long number)
{
    FIND_SPAN(span, number, 0, LARGEST_REGION);
    result_of(munmap(span.at, span.pages * PAGE));
    mark_unmapped(&span);
    if (span.region != regions)
        *span.region = (struct region){0};
}

/* Cuts the end of a region off. */
OPERATION cut(long number, long page)
{
    FIND_SPAN(span, number, page, LARGEST_REGION);
    if (span.region == regions || span.page == 0) {
        result(" -");
        return;
    }
    result_of(munmap(span.at, span.pages * PAGE));
    mark_unmapped(&span);
    span.region->pages = span.page;
}

/* Moves pages to another place that is given: flag 1 keeps the source mapped. */
OPERATION move_fixed(long number, long page, long pages, long to_number, long to_page, long to_pages, long flags)
{
    FIND_SPAN(from, number, page, pages);
    if (flags & 1)
        to_pages = from.pages;
    FIND_SPAN(to, to_number, to_page, to_pages);
    if (!is_one_mapping(&from)) {
        result(" -");
        return;
    }
    void *at = mremap(from.at, from.pages * PAGE, to.pages * PAGE,
                      MREMAP_MAYMOVE | MREMAP_FIXED | (flags & 1 ? MREMAP_DONTUNMAP : 0), to.at);
    if (at == MAP_FAILED) {
        result_of(-1);
        return;
    }
    result_of(at != to.at);
    mark_mapped(&to, from.shared[0]);
    if (flags & 1) {
        mark_split(&from);
    } else {
        mark_unmapped(&from);
        refill(&from);
    }
}

/* Changes the size of pages of region 0 in place, which succeeds where nothing is in the
 * way. */
OPERATION resize(long page, long pages, long new_pages)
{
    FIND_SPAN(from, 0, page, pages);
    FIND_SPAN(to, 0, page, new_pages);
    if (!is_one_mapping(&from)) {
        result(" -");
        return;
    }
    uint32_t mapping = from.mapping[0];
    void *at = mremap(from.at, from.pages * PAGE, to.pages * PAGE, 0);
    result_of(at == MAP_FAILED ? -1 : at != from.at);
    if (at == MAP_FAILED)
        return;
    for (long i = 0; i < from.pages || i < to.pages; i++) {
        from.mapping[i] = i < to.pages ? mapping : 0;
        from.shared[i] = from.shared[0];
    }
}

/* Changes the size of a whole region, wherever that takes it. */
OPERATION resize_region(long number, long new_pages)
{
    FIND_SPAN(span, number, 0, LARGEST_REGION);
    new_pages = 1 + (unsigned long)(new_pages - 1) % LARGEST_REGION;
    if (span.region == regions || !is_one_mapping(&span)) {
        result(" -");
        return;
    }
    void *at = mremap(span.at, span.pages * PAGE, new_pages * PAGE, MREMAP_MAYMOVE);
    result_of(at == MAP_FAILED ? -1 : 0);
    if (at == MAP_FAILED)
        return;
    int shared = span.shared[0];
    mark_unmapped(&span);
    *span.region = (struct region){at, new_pages};
    find_span(number, 0, new_pages, &span);
    mark_mapped(&span, shared);
}

/* Maps other pages of a mapping's file, or of the memory that it shares, in its place. */
OPERATION remap_pages(long number, long page, long pages, long file_page)
{
    FIND_SPAN(span, number, page, pages);
    if (!is_one_mapping(&span)) {
        result(" -");
        return;
    }
    result_of(remap_file_pages(span.at, span.pages * PAGE, 0, (unsigned long)file_page % LARGEST_REGION, 0));
    mark_split(&span);
}

OPERATION protect(long number, long page, long pages, long access)
{
    FIND_SPAN(span, number, page, pages);
    result_of(mprotect(span.at, span.pages * PAGE, access & 7));
    mark_split(&span);
}

/* Advice whose effect is defined. After MADV_FREE pages hold either the old contents or
 * zeros until they are written, so they are written at once, or dropped where they may not
 * be. Where a child does not inherit pages it has a hole, so that is for region 0. */
OPERATION advise(long number, long page, long pages, long advice)
{
    FIND_SPAN(span, number, page, pages);
    if (advice == MADV_DONTFORK && span.region != regions)
        advice = MADV_DOFORK;
    result_of(madvise(span.at, span.pages * PAGE, advice));
    mark_split(&span);
    for (long i = 0; advice == MADV_FREE && i < span.pages; i++) {
        struct access access = {.at = span.at + i * PAGE, .seed = 5, .page = i};
        if (fault_of(fill, &access))
            madvise(access.at, PAGE, MADV_DONTNEED);
    }
}

/* Locks and unlocks few pages, since locked pages count against the frames: 0 mlock,
 * 1 mlock2 on fault, 2 munlock. */
OPERATION lock(long number, long page, long pages, long how)
{
    FIND_SPAN(span, number, page, 1 + (unsigned long)pages % 8);
    switch ((unsigned long)how % 3) {
    case 0:
        result_of(mlock(span.at, span.pages * PAGE));
        break;
    case 1:
        result_of(mlock2(span.at, span.pages * PAGE, MLOCK_ONFAULT));
        break;
    default:
        result_of(munlock(span.at, span.pages * PAGE));
    }
    mark_split(&span);
}

/* Locks all memory, and unlocks it at once. Under the pager mlockall is refused, so of flags
 * that mean something only what is left of it is compared; none of them brings pages in,
 * which would give private pages of a file contents of their own. */
OPERATION lock_all(long flags)
{
    if (mlockall(flags & ~(flags & MCL_ONFAULT ? 0 : MCL_CURRENT)) < 0 && errno == EINVAL)
        result_of(-1);
    result_of(munlockall());
}

/* Asks which pages are resident. That differs by right; whether the question is answered
 * does not. */
OPERATION resident(long number, long page, long pages, long offset)
{
    static unsigned char answer[LARGEST_REGION];
    FIND_SPAN(span, number, page, pages);
    result_of(mincore(span.at + offset % PAGE, span.pages * PAGE, answer));
}

/* The access rights of pages in /proc: 0 maps, 1 smaps. */
OPERATION listed(long number, long page, long pages, long how)
{
    FIND_SPAN(span, number, page, pages);
    FILE *file = fopen(how & 1 ? "/proc/self/smaps" : "/proc/self/maps", "r");
    if (!file) {
        result_of(-1);
        return;
    }
    struct run_length run = {0};
    char line[512], access[8], *at = span.at, *end = at + span.pages * PAGE;
    unsigned long from, to;
    while (at < end && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, access) != 3)
            continue;
        for (; at < end && at < (char *)from; at += PAGE)
            run_add_letter(&run, '-');
        for (; at < end && at < (char *)to; at += PAGE)
            run_add(&run, access);
    }
    for (; at < end; at += PAGE)
        run_add_letter(&run, '-');
    run_end(&run);
    fclose(file);
}

#define ADVICE_GUARD_INSTALL 102
#define ADVICE_GUARD_REMOVE 103

/* Guards pages and opens them again, as allocators do: by guards, or by their access where
 * there are none for them. Readable and writeable afterwards. */
OPERATION guard(long number, long page, long pages)
{
    FIND_SPAN(span, number, page, pages);
    size_t length = span.pages * PAGE;
    if (!is_one_mapping(&span)) {
        result(" -");
        return;
    }
    int guarded = !madvise(span.at, length, ADVICE_GUARD_INSTALL);
    if (!guarded) {
        madvise(span.at, length, MADV_DONTNEED);
        mprotect(span.at, length, PROT_NONE);
    }
    /* A guard is a SEGV_MAPERR, closed access a SEGV_ACCERR. */
    for (long i = 0; i < span.pages; i += span.pages > 1 ? span.pages - 1 : 1) {
        char letter = fault_of(read_byte, &(struct access){.at = span.at + i * PAGE});
        result(" %s", letter == 'M' || letter == 'A' ? "closed" : "open");
    }
    if (guarded)
        result_of(madvise(span.at, length, ADVICE_GUARD_REMOVE));
    else
        result(" 0");
    result_of(mprotect(span.at, length, PROT_READ | PROT_WRITE));
    mark_split(&span);
}

/* Closes pages by a protection key, to all access (0) or to writing (1), and opens them
 * again; without effect where the processor has no keys. Readable and writeable afterwards. */
OPERATION protect_by_key(long number, long page, long pages, long how)
{
    FIND_SPAN(span, number, page, pages);
    int key = pkey_alloc(0, 0);
    if (key < 0) {
        result(" -");
        return;
    }
    size_t length = span.pages * PAGE;
    result_of(pkey_mprotect(span.at, length, PROT_READ | PROT_WRITE, key));
    pkey_set(key, how & 1 ? PKEY_DISABLE_WRITE : PKEY_DISABLE_ACCESS);
    char first = fault_of(read_byte, &(struct access){.at = span.at});
    /* A handler for signals that is left by a jump leaves its own rights behind. */
    pkey_set(key, how & 1 ? PKEY_DISABLE_WRITE : PKEY_DISABLE_ACCESS);
    char last = fault_of(write_byte, &(struct access){.at = span.at + (span.pages - 1) * PAGE});
    pkey_set(key, 0);
    result(" %c %c", first ? first : '-', last ? last : '-');
    result_of(pkey_mprotect(span.at, length, PROT_READ | PROT_WRITE, 0));
    result_of(pkey_free(key));
    mark_split(&span);
}

OPERATION sync_pages(long number, long page, long pages, long flags)
{
    FIND_SPAN(span, number, page, pages);
    result_of(msync(span.at, span.pages * PAGE, flags & 7));
}

/* Maps shared pages a second time, as an empty region: mremap of no length. */
OPERATION duplicate(long number, long page, long pages, long to_number)
{
    FIND_SPAN(from, number, page, pages);
    struct region *region = empty_region(to_number);
    if (!region || !is_one_mapping(&from)) {
        result(" -");
        return;
    }
    void *at = mremap(from.at, 0, from.pages * PAGE, MREMAP_MAYMOVE);
    result_of(at == MAP_FAILED ? -1 : 0);
    if (at == MAP_FAILED)
        return;
    *region = (struct region){at, from.pages};
    struct span span;
    find_span(to_number, 0, from.pages, &span);
    mark_mapped(&span, 1);
}

/* Advice by way of process_madvise, which names the process. */
OPERATION advise_process(long number, long page, long pages, long advice)
{
    FIND_SPAN(span, number, page, pages);
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec vector = {span.at, span.pages * PAGE};
    result_of(syscall(SYS_process_madvise, self, &vector, 1, advice, 0));
    close(self);
    mark_split(&span);
}

/* Names pages (0) or gives them a memory policy (1): neither changes contents, but each
 * makes a mapping of the kernel's of them. */
OPERATION label(long number, long page, long pages, long how)
{
    FIND_SPAN(span, number, page, pages);
    if (how & 1)
        result_of(syscall(SYS_mbind, span.at, span.pages * PAGE, 1 /* MPOL_PREFERRED */, &(unsigned long){1}, 64, 0));
    else
        result_of(prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, span.at, span.pages * PAGE, "fuzz"));
    mark_split(&span);
}

OPERATION resize_file(long file, long pages)
{
    result_of(ftruncate(files[(unsigned long)file % FILES], (unsigned long)pages % (FILE_PAGES + 1) * PAGE));
}
