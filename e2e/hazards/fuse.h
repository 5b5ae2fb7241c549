/* A file system of one file, served by hand through /dev/fuse: reads of the file go straight
 * into the reader's memory (FOPEN_DIRECT_IO), and each waits until it is let go. Names say
 * how it stands: "reading" is there while a read waits, and looking for "go" lets it go. */
#ifndef FUSE_H
#define FUSE_H
#include "hazard.h"
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#define FILE_BYTES (64 * 1024ul)
#define FILE_SEED 11

static int fuse_device;
static uint64_t fuse_reading;

static void fuse_reply(uint64_t request, int error, const void *data, size_t bytes)
{
    char out[sizeof(struct fuse_out_header) + FILE_BYTES];
    struct fuse_out_header head = {sizeof head + bytes, -error, request};
    memcpy(out, &head, sizeof head);
    memcpy(out + sizeof head, data, bytes);
    /* An unmount ends requests that nobody waits for, a release, before they are answered. */
    ssize_t written = write(fuse_device, out, head.len);
    CHECK(written == head.len || (written < 0 && errno == ENOENT && !bytes && !error));
}

static struct fuse_attr fuse_attributes(uint64_t node)
{
    struct fuse_attr a = {.ino = node, .nlink = 1, .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644,
                          .size = node == 1 ? 0 : FILE_BYTES, .blksize = 4096, .uid = getuid(), .gid = getgid()};
    return a;
}

static void fuse_look_up(uint64_t request, const char *name)
{
    struct fuse_entry_out entry = {.nodeid = 2, .attr = fuse_attributes(2)};
    if (!strcmp(name, "file") || (!strcmp(name, "reading") && fuse_reading))
        return fuse_reply(request, 0, &entry, sizeof entry);
    fuse_reply(request, ENOENT, NULL, 0);
    if (!strcmp(name, "go") && fuse_reading) {
        char data[FILE_BYTES];
        fill(data, FILE_BYTES, FILE_SEED);
        fuse_reply(fuse_reading, 0, data, FILE_BYTES);
        fuse_reading = 0;
    }
}

/* Serves until the file system is gone. Its buffers are on the stack, which is never paged. */
static void fuse_serve(void)
{
    char in[FUSE_MIN_READ_BUFFER + 128 * 1024];
    for (;;) {
        ssize_t n = read(fuse_device, in, sizeof in);
        if (n < 0 && (errno == EINTR || errno == ENOENT))
            continue;
        if (n < 0)
            _exit(errno == ENODEV ? 0 : 1);
        struct fuse_in_header *head = (void *)in;
        void *body = in + sizeof *head;
        struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 65536, .max_readahead = 65536};
        struct fuse_attr_out attributes = {.attr = fuse_attributes(head->nodeid)};
        struct fuse_open_out open_file = {.open_flags = FOPEN_DIRECT_IO};
        switch (head->opcode) {
        case FUSE_INIT: fuse_reply(head->unique, 0, &init, sizeof init); break;
        case FUSE_GETATTR: fuse_reply(head->unique, 0, &attributes, sizeof attributes); break;
        case FUSE_LOOKUP: fuse_look_up(head->unique, body); break;
        case FUSE_OPEN: fuse_reply(head->unique, 0, &open_file, sizeof open_file); break;
        case FUSE_READ: fuse_reading = head->unique; break;
        case FUSE_FLUSH: case FUSE_RELEASE: fuse_reply(head->unique, 0, NULL, 0); break;
        case FUSE_FORGET: case FUSE_BATCH_FORGET: case FUSE_INTERRUPT: break;
        default: fuse_reply(head->unique, ENOSYS, NULL, 0);
        }
    }
}

/* Enters a mount namespace whose mounts stay in it. 0 where that is not allowed. */
static int fuse_alone(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

/* Mounts it and leaves a child to serve it, which ends with this process. 0 where that is not
 * allowed. */
static pid_t fuse_mount(const char *folder)
{
    char options[64];
    fuse_device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fuse_device < 0)
        return 0;
    snprintf(options, sizeof options, "fd=%d,rootmode=40755,user_id=%d,group_id=%d", fuse_device, getuid(), getgid());
    if (mount("hazard", folder, "fuse.hazard", 0, options))
        return 0;
    pid_t parent = getpid(), server = fork();
    CHECK(server >= 0);
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        fuse_serve();
    }
    close(fuse_device);
    return server;
}

static int fuse_has(const char *folder, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

struct fuse_read { const char *folder; char *into; };

static void *fuse_read(void *arg)
{
    struct fuse_read *r = arg;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/file", r->folder);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    CHECK(read(fd, r->into, FILE_BYTES) == (ssize_t)FILE_BYTES);
    close(fd);
    return NULL;
}

/* Reads the file while everything is pushed out. */
static void fuse_check(const char *folder)
{
    pthread_t reader;
    struct fuse_read r = {folder, map_private(FILE_BYTES)};
    fill(r.into, FILE_BYTES, 1);
    CHECK(pthread_create(&reader, NULL, fuse_read, &r) == 0);
    while (!fuse_has(folder, "reading"))
        nap(1);
    push_out();
    push_out();
    CHECK(!fuse_has(folder, "go"));
    CHECK(pthread_join(reader, NULL) == 0);
    CHECK(holds(r.into, FILE_BYTES, FILE_SEED));
    munmap(r.into, FILE_BYTES);
}
#endif
