/* A program uses up its mappings before any page of it has been evicted, and touches more memory than its frames then. */
#include "hazard.h"

#define STRIPES (2048 * MB)

int main(void)
{
    size_t bytes = hazard_bytes();
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    char *stripes = mmap(NULL, STRIPES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(stripes != MAP_FAILED);
    /* Each makes two mappings more, until there are no more. */
    size_t at = 0;
    while (at < STRIPES && mprotect(stripes + at, PAGE, PROT_READ) == 0)
        at += 2 * PAGE;
    if (at == STRIPES)
        return 77;
    CHECK(errno == ENOMEM);
    for (size_t page = 0; page < bytes / PAGE; page++)
        memory[page * PAGE / 8] = mix(page);
    for (size_t page = 0; page < bytes / PAGE; page++)
        CHECK(memory[page * PAGE / 8] == mix(page));
    puts("every page was there");
    return 0;
}
