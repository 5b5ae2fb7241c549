/* A foreign-function interface looks functions up in the C library's own handle: what they do to
 * paged memory is what they do otherwise. */
#include "hazard.h"

#define LOOK_UP(name) __typeof__(name) *c_##name = (__typeof__(name) *)dlsym(library, #name); CHECK(c_##name != NULL)

static size_t bytes;

static uint64_t *filled(void)
{
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (size_t at = 0; at < bytes / 8; at += 512)
        memory[at] = mix(at);
    return memory;
}

static void check(uint64_t *memory)
{
    for (size_t at = 0; at < bytes / 8; at += 512)
        CHECK(memory[at] == mix(at));
}

int main(void)
{
    int status;
    bytes = hazard_bytes() / 2;
    void *library = dlopen("libc.so.6", RTLD_NOW);
    CHECK(library != NULL);
    LOOK_UP(fork);
    LOOK_UP(mremap);
    LOOK_UP(madvise);
    LOOK_UP(munmap);
    LOOK_UP(syscall);
    LOOK_UP(free);
    LOOK_UP(strdup);
    CHECK(dlerror() == NULL);
    CHECK(dlsym(library, "no_such_function") == NULL && dlerror() != NULL && dlerror() == NULL);
    CHECK((void *)c_fork == dlsym(RTLD_DEFAULT, "fork") && (void *)c_fork == (void *)fork);
    /* What this library does not define is the C library's own. */
    CHECK((void *)c_strdup == (void *)strdup);

    uint64_t *memory = filled();
    for (int raw = 0; raw < 2; raw++) {
        pid_t child = raw ? (pid_t)c_syscall(SYS_fork) : c_fork();
        if (child == 0) {
            check(memory);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    memory = c_mremap(memory, bytes, 2 * bytes, MREMAP_MAYMOVE);
    CHECK(memory != MAP_FAILED);
    check(memory);
    CHECK(c_madvise(memory, bytes, MADV_DONTNEED) == 0);
    for (size_t at = 0; at < bytes / 8; at += 512)
        CHECK(memory[at] == 0);
    CHECK(c_munmap(memory, 2 * bytes) == 0);
    c_free(c_strdup("a block of whichever allocator there is"));
    CHECK(dlclose(library) == 0);
    puts("looked up");
    return 0;
}
