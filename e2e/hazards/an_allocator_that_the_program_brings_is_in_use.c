/* A library that defines `malloc`, linked or preloaded as jemalloc and tcmalloc are, is the program's allocator: it takes
 * back with `free` what it gave by functions of its own, and knows each block that `malloc` gave. Its memory is paged. So
 * is the heap of a program with a library that only counts blocks of the C library's allocator, as memusage does. */
#include "hazard.h"
#include <malloc.h>

/* Blocks have a header that names the allocator, and are never given again. */
static const char ALLOCATOR[] =
    "#define _GNU_SOURCE\n#include <errno.h>\n#include <stdatomic.h>\n#include <stddef.h>\n#include <stdlib.h>\n#include <string.h>\n"
    "#include <sys/mman.h>\n"
    "struct header { size_t magic, size, pad[2]; };\n"
    "static struct header *of(void *p) { struct header *h = (struct header *)p - 1; if (h->magic != 4711) abort(); return h; }\n"
    "static void *give(size_t align, size_t size) {\n"
    "    static _Atomic size_t used; static char *start; static atomic_flag lock = ATOMIC_FLAG_INIT; const size_t all = 1ul << 32;\n"
    "    while (atomic_flag_test_and_set(&lock)) ;\n"
    "    if (!start) start = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);\n"
    "    size_t at = ((size_t)start + used + sizeof(struct header) + align - 1) & -align;\n"
    "    int fits = start != MAP_FAILED && at + size <= (size_t)start + all;\n"
    "    if (fits) used = at + size - (size_t)start;\n"
    "    atomic_flag_clear(&lock);\n"
    "    if (!fits) { errno = ENOMEM; return NULL; }\n"
    "    struct header *h = (struct header *)at - 1; h->magic = 4711; h->size = size; return (void *)at; }\n"
    "static atomic_long freed;\n"
    "void *memalign(size_t a, size_t n);\n"
    "void *malloc(size_t n) { return GIVE(n); }\n"
    "void *calloc(size_t n, size_t m) { return give(32, n * m); }\n"
    "void free(void *p) { if (p) { of(p)->magic = 4711; freed++; } }\n"
    "void *realloc(void *p, size_t n) { void *q = give(32, n); if (p && q) { size_t s = of(p)->size; memcpy(q, p, s < n ? s : n); free(p); } return q; }\n"
    "void *memalign(size_t a, size_t n) { return give(a < 32 ? 32 : a, n); }\n"
    "void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }\n"
    "void *valloc(size_t n) { return give(4096, n); }\n"
    "int posix_memalign(void **to, size_t a, size_t n) { return (*to = memalign(a, n)) ? 0 : ENOMEM; }\n"
    "size_t malloc_usable_size(void *p) { return p ? of(p)->size : 0; }\n"
    "void *operator_new(size_t n) { return give(32, n); }\n"
    "void operator_delete(void *p) { free(p); }\n"
    "long freed_blocks(void) { return freed; }\n";

/* Takes its blocks from the C library. */
static const char COUNTER[] =
    "#include <stddef.h>\nextern void *__libc_malloc(size_t); extern void __libc_free(void *);\n"
    "extern void *__libc_calloc(size_t, size_t); extern void *__libc_realloc(void *, size_t);\n"
    "extern void *__libc_memalign(size_t, size_t);\n"
    "static long blocks;\n"
    "void *memalign(size_t a, size_t n) { return __libc_memalign(a, n); }\n"
    "void *malloc(size_t n) { blocks++; return GIVE(n); }\n"
    "void *calloc(size_t n, size_t m) { blocks++; return __libc_calloc(n, m); }\n"
    "void *realloc(void *p, size_t n) { return __libc_realloc(p, n); }\n"
    "void free(void *p) { blocks--; __libc_free(p); }\n";

static void *operator_new(size_t bytes)
{
    return ((void *(*)(size_t))dlsym(RTLD_DEFAULT, "operator_new"))(bytes);
}

static void operator_delete(void *block)
{
    ((void (*)(void *))dlsym(RTLD_DEFAULT, "operator_delete"))(block);
}

static long freed_blocks(void)
{
    return ((long (*)(void))dlsym(RTLD_DEFAULT, "freed_blocks"))();
}

/* Blocks of each function go back by the other side's. */
static void check_functions(void)
{
    long before = freed_blocks();
    for (size_t n = 1; n < 3000; n++) {
        char *blocks[] = {malloc(n),           calloc(1, n),           realloc(malloc(n), n + 1), memalign(64, n),
                          aligned_alloc(64, n), reallocarray(NULL, 1, n), strndup("0123456789", n),  valloc(n),
                          operator_new(n)};
        size_t count = sizeof blocks / sizeof blocks[0];
        for (size_t i = 0; i < count; i++) {
            CHECK(blocks[i]);
            CHECK(i == 6 || malloc_usable_size(blocks[i]) >= n);
            ((n + i) % 2 ? operator_delete : free)(blocks[i]);
        }
        void *aligned;
        CHECK(posix_memalign(&aligned, 128, n) == 0 && (uintptr_t)aligned % 128 == 0);
        operator_delete(aligned);
    }
    CHECK(freed_blocks() - before >= 2999 * 11);
}

static void *caller(void *arg)
{
    check_functions();
    return arg;
}

static void check(void)
{
    size_t n = hazard_bytes();
    char *p = malloc(n);
    CHECK(p);
    fill(p, n, 5);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, caller, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    pid_t child = checked_fork();
    if (child == 0) {
        check_functions();
        _exit(holds(p, n, 5) ? 0 : 1);
    }
    reap(child);
    CHECK(holds(p, n, 5));
    operator_delete(p);
}

static size_t resident_bytes(void)
{
    char line[256];
    size_t kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        sscanf(line, "RssAnon: %zu kB", &kilobytes);
    fclose(status);
    return kilobytes << 10;
}

static void check_counted(void)
{
    size_t n = hazard_bytes(), block = 32 << 10;
    char *blocks[n / block];
    for (size_t i = 0; i < n / block; i++) {
        blocks[i] = malloc(block);
        CHECK(blocks[i]);
        fill(blocks[i], block, i);
    }
    CHECK(!paged() || resident_bytes() < n);
    for (size_t i = 0; i < n / block; i++) {
        CHECK(holds(blocks[i], block, i));
        free(blocks[i]);
    }
}

/* Executes this program with a library of that source preloaded, whose `malloc` calls a function. */
static void run_with(const char *source, const char *call, char *program, char *mode)
{
    char folder[] = "allocator.XXXXXX", text[256];
    CHECK(mkdtemp(folder));
    snprintf(text, sizeof text, "cc -shared -fPIC -x c -O1 -fno-builtin '-DGIVE(n)=%s' -o %s/allocator.so -", call, folder);
    FILE *compiler = popen(text, "w");
    CHECK(compiler && fputs(source, compiler) >= 0 && pclose(compiler) == 0);
    snprintf(text, sizeof text, "%s/allocator.so", folder);
    pid_t child = checked_fork();
    if (child == 0) {
        char *preloaded = realpath(text, NULL);
        CHECK(preloaded && setenv("LD_PRELOAD", preloaded, 1) == 0);
        execl("/proc/self/exe", program, mode, NULL);
        CHECK(!"executed");
    }
    int status = end_of(child);
    CHECK(unlink(text) == 0 && rmdir(folder) == 0);
    CHECK(status == 0);
}

int main(int count, char **arguments)
{
    if (count > 1) {
        CHECK(getenv("LD_PRELOAD"));
        strcmp(arguments[1], "brought") ? check_counted() : check();
        return 0;
    }
    run_with(ALLOCATOR, "give(32, n)", arguments[0], "brought");
    run_with(COUNTER, "__libc_malloc(n)", arguments[0], "counted");
    /* One that comes before the library's own. */
    run_with(ALLOCATOR, "memalign(32, n)", arguments[0], "brought");
    run_with(COUNTER, "memalign(16, n)", arguments[0], "counted");
    return 0;
}
