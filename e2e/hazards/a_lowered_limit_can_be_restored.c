/* A process lowers its soft limits and restores what it has read before; the hard ones read as they are, also after a
 * child of vfork has set limits of its own. With "through" and another program: what an image reads is what one before
 * it has set, with the other, which may be without the pager's library, in between. */
#include "hazard.h"

static const int RESOURCES[] = { RLIMIT_AS, RLIMIT_DATA };
static const rlim_t LOWERED = 12ul << 30, CHILDS = 9ul << 30, PASSED = 14ul << 30;

static struct rlimit read_limit(int resource)
{
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0);
    return limit;
}

static int reads(int resource, rlim_t soft, rlim_t hard)
{
    struct rlimit limit = read_limit(resource);
    if (limit.rlim_cur == soft && limit.rlim_max == hard)
        return 1;
    fprintf(stderr, "%lu, %lu instead of %lu, %lu\n", limit.rlim_cur, limit.rlim_max, soft, hard);
    return 0;
}

static void lowers(int resource)
{
    struct rlimit first = read_limit(resource);
    pid_t child = vfork();
    if (child == 0) {
        struct rlimit childs = { CHILDS, first.rlim_max };
        if (setrlimit(resource, &childs) == 0)
            execl("/bin/true", "true", NULL);
        _exit(3);
    }
    reap(child);
    CHECK(reads(resource, first.rlim_cur, first.rlim_max));
    struct rlimit lowered = { LOWERED, first.rlim_max };
    CHECK(setrlimit(resource, &lowered) == 0 && reads(resource, LOWERED, first.rlim_max));
    CHECK(setrlimit(resource, &first) == 0 && reads(resource, first.rlim_cur, first.rlim_max));
}

/* Executes this program to set a limit, to be an image that has one, the other, and this one to read it. */
static int pass(char **given)
{
    char *self = given[0], *step = given[1], *other = given[2];
    struct rlimit passed = { PASSED, PASSED };
    if (!strcmp(step, "reads"))
        return reads(RLIMIT_AS, PASSED, PASSED) ? 0 : 1;
    if (!strcmp(step, "through")) {
        CHECK(setrlimit(RLIMIT_AS, &passed) == 0);
        execl(self, self, "again", other, NULL);
    } else if (!strcmp(step, "again"))
        execl(other, other, "next", self, NULL);
    else if (!strcmp(step, "next"))
        execl(other, other, "reads", NULL);
    CHECK(!"executed");
    return 1;
}

int main(int count, char **given)
{
    if (count > 1)
        return pass(given);
    for (int n = 0; n < 2; n++)
        lowers(RESOURCES[n]);
    puts("restored");
    return 0;
}
