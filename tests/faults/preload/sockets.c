/* Calls on sockets and pipes, counted and made to fail: preloaded into a process, it follows the block of numbers in the
   file $DRAGOMAN_SOCKETS, which tests/faults/sockets.py writes. One call fails: the first that fits after `skip` others.

   Descriptors 0, 1 and 2 are left alone: they are the test's own. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum call { ACCEPT, CONNECT, RECV, SEND, READ, WRITE, SOCKET, PIPE, WAIT, CALLS };
enum object { LISTENER, TCP, STORE, UNIX, PIPES, NEW, OBJECTS, NEITHER };
enum { SHORT = -1, SLOW = -2 };

struct control {
    int32_t pid;  /* side 0 is this process, side 1 are all others; 0: the first that comes */
    int32_t port; /* connections to it are STORE */
    int32_t side, call, object, skip, fault, fired;
    int32_t counts[2][CALLS][OBJECTS];
};

static struct control *control;

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("DRAGOMAN_SOCKETS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (found == MAP_FAILED) return;
    control = found;
    int32_t nobody = 0;
    __atomic_compare_exchange_n(&control->pid, &nobody, getpid(), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static int port_of(int fd, int (*name)(int, struct sockaddr *, socklen_t *)) {
    union { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; struct sockaddr_storage room; } address;
    socklen_t size = sizeof address;
    if (name(fd, &address.any, &size)) return 0;
    return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

static int peer_name(int fd, struct sockaddr *address, socklen_t *size) { return getpeername(fd, address, size); }
static int own_name(int fd, struct sockaddr *address, socklen_t *size) { return getsockname(fd, address, size); }

static enum object object_of(int fd) {
    struct stat status;
    int family = 0, listens = 0;
    socklen_t size = sizeof family;
    if (fd < 3 || fstat(fd, &status)) return NEITHER;
    if (S_ISFIFO(status.st_mode)) return PIPES;
    if (!S_ISSOCK(status.st_mode) || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size)) return NEITHER;
    if (family == AF_UNIX) return UNIX;
    if (family != AF_INET && family != AF_INET6) return NEITHER;
    size = sizeof listens;
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
    if (listens) return LISTENER;
    int port = control->port;
    return port && (port_of(fd, own_name) == port || port_of(fd, peer_name) == port) ? STORE : TCP;
}

/* The fault of this call: 0 none, above 0 an errno, or SHORT or SLOW. */
static int fault_of(enum call call, enum object object) {
    if (!control || object == NEITHER) return 0;
    int side = control->pid != getpid();
    __atomic_add_fetch(&control->counts[side][call][object], 1, __ATOMIC_SEQ_CST);
    if (!control->fault || control->side != side || control->call != call || control->object != object) return 0;
    if (__atomic_fetch_sub(&control->skip, 1, __ATOMIC_SEQ_CST) != 0) return 0;
    control->fired = 1;
    if (control->fault == SLOW) poll(NULL, 0, 50);
    return control->fault == SLOW ? 0 : control->fault;
}

static int fault_on(enum call call, int fd) {
    int before = errno;
    int fault = control ? fault_of(call, object_of(fd)) : 0;
    errno = fault > 0 ? fault : before;
    return fault;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_ON(call, fd) int fault = fault_on(call, fd); if (fault > 0) return -1
#define READ_SIZE(size) (fault == SHORT && (size) > 1 ? 1 : (size))
#define WRITE_SIZE(size) (fault == SHORT && (size) > 1 ? (size) / 2 : (size))

ssize_t read(int fd, void *data, size_t size) { FAIL_ON(READ, fd); return REAL(read)(fd, data, READ_SIZE(size)); }
ssize_t __read_chk(int fd, void *data, size_t size, size_t room) { (void)room; return read(fd, data, size); }
ssize_t write(int fd, const void *data, size_t size) { FAIL_ON(WRITE, fd); return REAL(write)(fd, data, WRITE_SIZE(size)); }

ssize_t recv(int fd, void *data, size_t size, int flags) {
    FAIL_ON(RECV, fd);
    return REAL(recv)(fd, data, READ_SIZE(size), flags);
}
ssize_t __recv_chk(int fd, void *data, size_t size, size_t room, int flags) { (void)room; return recv(fd, data, size, flags); }

ssize_t send(int fd, const void *data, size_t size, int flags) {
    FAIL_ON(SEND, fd);
    return REAL(send)(fd, data, WRITE_SIZE(size), flags);
}

/* Of several pieces a short call takes a part of the first one. */
static ssize_t first_piece(int fd, const struct iovec *pieces, int count, int is_write) {
    for (int i = 0; i < count; i++) {
        size_t size = pieces[i].iov_len;
        if (size == 0) continue;
        return is_write ? REAL(write)(fd, pieces[i].iov_base, size > 1 ? size / 2 : 1) : REAL(read)(fd, pieces[i].iov_base, 1);
    }
    return 0;
}

ssize_t readv(int fd, const struct iovec *pieces, int count) {
    FAIL_ON(READ, fd);
    return fault == SHORT ? first_piece(fd, pieces, count, 0) : REAL(readv)(fd, pieces, count);
}
ssize_t writev(int fd, const struct iovec *pieces, int count) {
    FAIL_ON(WRITE, fd);
    return fault == SHORT ? first_piece(fd, pieces, count, 1) : REAL(writev)(fd, pieces, count);
}
ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    FAIL_ON(RECV, fd);
    int is_plain = !message->msg_control && !flags;
    return fault == SHORT && is_plain ? first_piece(fd, message->msg_iov, (int)message->msg_iovlen, 0) : REAL(recvmsg)(fd, message, flags);
}
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    FAIL_ON(SEND, fd);
    int is_plain = !message->msg_control && !message->msg_name;
    return fault == SHORT && is_plain ? first_piece(fd, message->msg_iov, (int)message->msg_iovlen, 1) : REAL(sendmsg)(fd, message, flags);
}
int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags) {
    FAIL_ON(ACCEPT, fd);
    return REAL(accept4)(fd, address, size, flags);
}
int accept(int fd, struct sockaddr *address, socklen_t *size) {
    FAIL_ON(ACCEPT, fd);
    return REAL(accept)(fd, address, size);
}
int connect(int fd, const struct sockaddr *address, socklen_t size) {
    int before = errno, port = 0;
    if (address->sa_family == AF_INET) port = ntohs(((const struct sockaddr_in *)address)->sin_port);
    if (address->sa_family == AF_INET6) port = ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
    int fault = port == 0 || !control ? 0 : fault_of(CONNECT, port == control->port ? STORE : TCP);
    errno = fault > 0 ? fault : before;
    return fault > 0 ? -1 : REAL(connect)(fd, address, size);
}

/* What makes a descriptor, and what waits for one. */
static int fails(enum call call) {
    int before = errno, fault = fault_of(call, NEW);
    errno = fault > 0 ? fault : before;
    return fault > 0;
}
int socket(int domain, int type, int protocol) { return fails(SOCKET) ? -1 : REAL(socket)(domain, type, protocol); }
int socketpair(int domain, int type, int protocol, int pair[2]) {
    return fails(SOCKET) ? -1 : REAL(socketpair)(domain, type, protocol, pair);
}
int pipe(int pair[2]) { return fails(PIPE) ? -1 : REAL(pipe)(pair); }
int pipe2(int pair[2], int flags) { return fails(PIPE) ? -1 : REAL(pipe2)(pair, flags); }
int epoll_wait(int fd, struct epoll_event *events, int count, int timeout) {
    return fails(WAIT) ? -1 : REAL(epoll_wait)(fd, events, count, timeout);
}
