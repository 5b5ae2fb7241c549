/* Pages of a private mapping of a file that were written are anonymous memory which the kernel
 * cannot drop and the pager does not page. They stay as they are beside memory that is paged, also
 * where a contract counts both: HAZARD_SECONDS says for how long they are checked. */
#include "hazard.h"

#define FILE_BYTES (28 * MB)

static void check(const unsigned char *file, const uint64_t *heap, size_t words)
{
    for (size_t i = 0; i < FILE_BYTES; i += PAGE)
        CHECK(file[i] == (unsigned char)(i / PAGE + 1) && file[i + 1] == 0);
    for (size_t i = 0; i < words; i += PAGE / 8)
        CHECK(heap[i] == mix(i));
}

int main(void)
{
    char path[] = "/var/tmp/hazard-private-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0 && ftruncate(fd, FILE_BYTES) == 0);
    unsigned char *file = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(file != MAP_FAILED);
    size_t words = hazard_bytes() / 8;
    uint64_t *heap = malloc(words * 8);
    CHECK(heap);
    for (size_t i = 0; i < FILE_BYTES; i += PAGE)
        file[i] = (unsigned char)(i / PAGE + 1);
    for (size_t i = 0; i < words; i += PAGE / 8)
        heap[i] = mix(i);
    const char *seconds = getenv("HAZARD_SECONDS");
    time_t end = time(NULL) + (seconds ? atoi(seconds) : 0);
    do {
        check(file, heap, words);
        usleep(100000);
    } while (time(NULL) < end);
    return 0;
}
