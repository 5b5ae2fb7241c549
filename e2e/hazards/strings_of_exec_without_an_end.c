/* Strings that have no end where they are mapped, or a long one, get the kernel's error from exec. */
#include "hazard.h"

static char *const ARGS[] = {"x", NULL};
static char *const NONE[] = {NULL};

/* Fills a page, and returns its last `size` bytes; the page behind it is not mapped. */
static char *at_the_end(size_t size)
{
    char *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED && munmap(p + PAGE, PAGE) == 0);
    memset(p, 'a', PAGE);
    return p + PAGE - size;
}

static void check_path(const char *path, int expected)
{
    CHECK(execve(path, ARGS, NONE) == -1 && errno == expected);
    pid_t child;
    CHECK(posix_spawn(&child, path, NULL, NULL, ARGS, NONE) == expected);
}

int main(void)
{
    check_path(at_the_end(100), EFAULT);
    char *whole = at_the_end(PAGE);
    memset(whole, '/', PAGE);
    check_path(whole, ENAMETOOLONG);
    char *ends = at_the_end(6);
    memcpy(ends, "/none", 6);
    check_path(ends, ENOENT);
    static char longer[5000];
    memset(longer, 'a', sizeof longer - 1);
    check_path(longer, ENAMETOOLONG);
    CHECK(execvp(longer, ARGS) == -1 && errno == ENAMETOOLONG);
    char *const torn[] = {at_the_end(50), NULL};
    CHECK(execve("/bin/true", ARGS, torn) == -1 && errno == EFAULT);
    static char longest[33 * PAGE];
    memset(longest, 'a', sizeof longest - 1);
    char *const too_long[] = {longest, NULL};
    CHECK(execve("/bin/true", ARGS, too_long) == -1 && errno == E2BIG);
    CHECK(execvpe("true", ARGS, torn) == -1 && errno == EFAULT);
    CHECK(execvpe("true", ARGS, too_long) == -1 && errno == E2BIG);
    CHECK(fexecve(-1, ARGS, NONE) == -1 && errno == EINVAL);
    char *const *volatile nothing = NULL;
    CHECK(fexecve(0, nothing, NONE) == -1 && errno == EINVAL);
    CHECK(fexecve(0, ARGS, nothing) == -1 && errno == EINVAL);
    return 0;
}
