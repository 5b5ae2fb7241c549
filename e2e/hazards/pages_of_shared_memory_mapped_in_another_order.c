/* Shared memory is mapped anew in another order (remap_file_pages), by a parent and by its child, while most of it
 * is paged out: every page is the one that was asked for, and both see what either stores. */
#include "hazard.h"

enum { RUN = 16 };

static size_t pages;
static char *memory;

/* Runs of pages in reverse order. */
static size_t reversed(size_t page)
{
    return pages - RUN - page / RUN * RUN + page % RUN;
}

static size_t *word(size_t page, int number)
{
    return (size_t *)(memory + page * PAGE) + number;
}

static int check(const char *whose)
{
    for (size_t page = 0; page < pages; page++) {
        if (*word(page, 0) != reversed(page) + 7) {
            printf("page %zu of the %s is %zu, not %zu\n", page, whose, *word(page, 0) - 7, reversed(page));
            return 1;
        }
    }
    return 0;
}

static int reverse(void)
{
    for (size_t page = 0; page < pages; page += RUN)
        if (remap_file_pages(memory + page * PAGE, RUN * PAGE, 0, reversed(page), 0))
            return perror("remap_file_pages"), 1;
    return 0;
}

/* Without a free descriptor the call works as ever, or is refused with memory as it was. */
static int without_descriptors(void)
{
    struct rlimit none = {3, 3};
    if (setrlimit(RLIMIT_NOFILE, &none))
        return 1;
    size_t middle = pages / 2 / RUN * RUN;
    int is_refused = remap_file_pages(memory, RUN * PAGE, 0, middle, 0) != 0;
    if (is_refused && errno != ENOMEM)
        return 2;
    for (size_t page = 0; page < RUN; page++)
        if (*word(page, 0) != (is_refused ? reversed(page) : middle + page) + 7)
            return 3;
    return 0;
}

int main(void)
{
    pages = hazard_bytes() / PAGE / RUN * RUN;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return perror("mmap"), 1;
    for (size_t page = 0; page < pages; page++)
        *word(page, 0) = page + 7;
    pid_t child = fork();
    if (child == 0) {
        if (reverse() || check("child"))
            _exit(1);
        for (size_t page = 0; page < pages; page++)
            *word(page, 1) = reversed(page) + 1;
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        return printf("the child ended with %#x\n", status), 1;
    for (size_t page = 0; page < pages; page++)
        if (*word(page, 1) != page + 1)
            return printf("the child's store to page %zu is lost\n", page), 1;
    if (reverse() || check("parent"))
        return 1;
    child = fork();
    if (child == 0)
        _exit(without_descriptors());
    if (waitpid(child, &status, 0) != child || status != 0)
        return printf("the child without descriptors ended with %#x\n", status), 1;
    /* A range that ends in another mapping is refused, and that one stays. */
    char *two = mmap(NULL, 2 * RUN * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int other = memfd_create("other", MFD_CLOEXEC);
    if (two == MAP_FAILED || other < 0 || ftruncate(other, RUN * PAGE) != 0 || pwrite(other, "77", 2, 0) != 2
        || mmap(two + RUN * PAGE, RUN * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, other, 0) == MAP_FAILED)
        return perror("a neighbour"), 1;
    for (size_t page = 0; page < RUN; page++)
        two[page * PAGE] = page + 1;
    if (remap_file_pages(two, (RUN + 1) * PAGE, 0, 1, 0) != -1 || errno != EINVAL)
        return puts("a range of two objects was mapped anew"), 1;
    if (two[0] != 1 || two[RUN * PAGE] != '7' || two[RUN * PAGE + 1] != '7')
        return puts("a call that was refused has changed memory"), 1;
    /* Private memory has no other pages. */
    char *own = mmap(NULL, RUN * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (remap_file_pages(own, RUN * PAGE, 0, 0, 0) != -1 || errno != EINVAL)
        return puts("private memory was mapped anew"), 1;
    return 0;
}
