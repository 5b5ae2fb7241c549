/* Operations of the heap: what malloc and its family give, and the program break. */

#define BLOCKS 32
static struct heap_block { unsigned char *at; size_t size; uint64_t seed; } heap_blocks[BLOCKS];

static void heap_fill(struct heap_block *block, uint64_t seed)
{
    block->seed = seed;
    for (size_t i = 0; i < block->size; i += 61)
        block->at[i] = mix(seed ^ i);
}

static void heap_verify(const struct heap_block *block, size_t size)
{
    for (size_t i = 0; i < size; i += 61)
        if (block->at[i] != (unsigned char)mix(block->seed ^ i)) {
            wrong("byte %zu of a heap block of %zu", i, block->size);
            return;
        }
}

/* Changes a block: an empty one is allocated (0 malloc, 1 calloc, 2 aligned), one that is
 * there is verified, then freed (0) or resized (others). */
OPERATION heap(long number, long size, long how, long seed)
{
    struct heap_block *block = &heap_blocks[(unsigned long)number % BLOCKS];
    size = (unsigned long)size % (1 << 20);
    if (block->at) {
        heap_verify(block, block->size);
        if (!size || how == 0) {
            free(block->at);
            *block = (struct heap_block){0};
            result(" freed");
            return;
        }
        unsigned char *at = realloc(block->at, size);
        if (!at) {
            result_of(-1);
            return;
        }
        block->at = at;
        heap_verify(block, (size_t)size < block->size ? (size_t)size : block->size);
        block->size = size;
    } else {
        size += 1;
        block->at = how == 1 ? calloc(1, size) : how == 2 ? memalign(1ul << (4 + seed % 10), size) : malloc(size);
        if (!block->at) {
            result_of(-1);
            return;
        }
        block->size = size;
        for (long i = 0; how == 1 && i < size; i += 97)
            if (block->at[i])
                wrong("calloc gives byte %ld other than zero", i);
        if (how == 2 && (uintptr_t)block->at % (1ul << (4 + seed % 10)))
            wrong("memalign gives another alignment");
    }
    heap_fill(block, seed);
    result(" %zu", block->size);
}

OPERATION heap_check(void)
{
    for (int i = 0; i < BLOCKS; i++)
        if (heap_blocks[i].at)
            heap_verify(&heap_blocks[i], heap_blocks[i].size);
}

/* The program break goes up, down, up again and back. */
OPERATION program_break(long pages, long seed)
{
    pages = 1 + (unsigned long)pages % 512;
    char *start = sbrk(0), *up = sbrk(pages * PAGE);
    if (up == (char *)-1) {
        result_of(-1);
        return;
    }
    result(" %d", up == start);
    char *first = (char *)(((uintptr_t)up + PAGE - 1) & ~(PAGE - 1));
    struct span span = {.at = first, .pages = pages - 1};
    sum_span(&span);
    for (long i = 0; i < span.pages; i++)
        fault_of(fill, &(struct access){.at = first + i * PAGE, .seed = seed, .page = i});
    sum_span(&span);
    sbrk(-pages / 2 * PAGE);
    result(" %c", fault_of(read_byte, &(struct access){.at = first + (pages - 1) * PAGE}) ?: '-');
    sbrk(pages / 2 * PAGE);
    sum_span(&span);
    result(" %d", sbrk(-pages * PAGE) == start + pages * PAGE && sbrk(0) == start);
}
