/* What the programs share: sockets that are connected to each other on loopback, and the output of results.
 *
 * Each program is its own server and client. It prints every result by TRY (the expression, and its value or errno) or
 * say, so that a run under the filter can be compared with a plain one line by line. Values that may differ from run
 * to run are not printed: ports, process ids, times (only whether they are right). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Prints a value, or the error's name for -1; returns the value. */
static inline long report_result(const char *what, long value) {
    int error = errno;
    if (value == -1) printf("%s: %s\n", what, strerrorname_np(error));
    else printf("%s = %ld\n", what, value);
    fflush(stdout);
    errno = error;
    return value;
}
#define TRY(expression) report_result(#expression, (long)(expression))

__attribute__((format(printf, 1, 2))) static inline void say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
}

/* For calls that must succeed before there is anything to compare. */
static inline long must(const char *what, long value) {
    if (value == -1) {
        say("%s failed: %s", what, strerrorname_np(errno));
        exit(99);
    }
    return value;
}
#define MUST(expression) must(#expression, (long)(expression))

static inline struct sockaddr_in here(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static inline int bound(void) {
    int s = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in a = here(0);
    MUST(bind(s, (struct sockaddr *)&a, sizeof a));
    return s;
}

static inline int listener(void) {
    int s = bound();
    MUST(listen(s, 16));
    return s;
}

static inline struct sockaddr_in where(int s) {
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    MUST(getsockname(s, (struct sockaddr *)&a, &len));
    return a;
}

static inline int dial(int s) {
    int c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in a = where(s);
    MUST(connect(c, (struct sockaddr *)&a, sizeof a));
    return c;
}

/* Two ends of a connection: the client's and the server's. */
struct ends { int client, server; };

static inline struct ends ends_at(int s) {
    struct ends e;
    e.client = dial(s);
    e.server = MUST(accept(s, NULL, NULL));
    return e;
}

static inline struct ends ends(void) {
    int s = listener();
    struct ends e = ends_at(s);
    close(s);
    return e;
}

static inline void nonblocking(int fd) { MUST(fcntl(fd, F_SETFL, MUST(fcntl(fd, F_GETFL)) | O_NONBLOCK)); }

/* Waits for any of the events; prints nothing. */
static inline int await(int fd, int events) {
    struct pollfd p = {.fd = fd, .events = events};
    while (poll(&p, 1, 10000) == -1 && errno == EINTR) {}
    return p.revents;
}

/* Waits until this many bytes can be read. */
static inline void arrived(int fd, int count) {
    int have = 0;
    while (MUST(ioctl(fd, FIONREAD, &have)) == 0 && have < count) await(fd, POLLIN), sched_yield();
}

/* Waits until the other end has shut down. */
static inline void ended(int fd) {
    while (!(await(fd, POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR))) {}
}

/* Fills a socket until no further byte is accepted; returns how many were. */
static inline long fill(int fd) {
    static char much[65536];
    long sent = 0, n;
    for (int size = sizeof much; size > 0; size /= 16)
        do {
            while ((n = send(fd, much, size, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) sent += n;
            /* Data in transit may make room again. */
        } while (poll((struct pollfd[]){{.fd = fd, .events = POLLOUT}}, 1, 50) == 1);
    return sent;
}

/* Fills a socket that its peer does not read, until nothing is accepted for a while. */
static inline long stuff(int fd) {
    long all = 0, n;
    for (int quiet = 0; quiet < 2; all += n) n = fill(fd), quiet = n ? 0 : quiet + 1;
    return all;
}

static inline void drain(int fd, long count) {
    static char much[65536];
    while (count > 0) {
        long n = MUST(recv(fd, much, count < (long)sizeof much ? count : (long)sizeof much, 0));
        if (n == 0) break;
        count -= n;
    }
}

static inline double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* Whether this much time has passed since: not less, and not much more. */
static inline const char *took(double since, double expected) {
    double now = seconds() - since;
    return now < expected - 0.0001 ? "too short" : now > expected + 3.0 ? "too long" : "right";
}

static inline int state(int fd) {
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
    return info.tcpi_state;
}

/* A thread that is asleep in the kernel: it has reached the call that is to block. */
static inline void await_asleep(pid_t thread) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", thread);
    for (int quiet = 0; quiet < 20;) {
        int fd = open(path, O_RDONLY);
        if (fd < 0) return;
        long n = read(fd, line, sizeof line - 1);
        close(fd);
        line[n > 0 ? n : 0] = 0;
        char *end = strrchr(line, ')');
        quiet = end && end[2] == 'S' ? quiet + 1 : 0;
        struct timespec t = {0, 1000000};
        nanosleep(&t, NULL);
    }
}

static volatile pid_t registered_thread;
static inline void this_thread(void) { registered_thread = syscall(SYS_gettid); }
static inline void await_thread_asleep(void) {
    while (!registered_thread) sched_yield();
    await_asleep(registered_thread);
}

/* Run by a thread that sends a byte on a socket once the registered thread sleeps. */
static inline void *sends_later(void *socket) {
    await_thread_asleep();
    send((long)socket, "x", 1, 0);
    return NULL;
}

/* A program that hangs is killed. */
__attribute__((constructor)) static void begin(void) { alarm(90); }

/* Cancels a thread in each of these ways to sleep; the thread first calls this_thread(). */
static inline void cancel_each(void *(*waits)(void *), long ways) {
    for (long way = 0; way < ways; way++) {
        pthread_t t;
        void *result;
        registered_thread = 0;
        pthread_create(&t, NULL, waits, (void *)way);
        await_thread_asleep();
        pthread_cancel(t);
        pthread_join(t, &result);
        say("%ld %d", way, result == PTHREAD_CANCELED);
    }
}
