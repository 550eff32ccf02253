/* Zero-copy sends on connections that several processes have, so that the agent carries them: the reports come as on a
 * connection of one process, by the error queue, poll, select and epoll. */
#include "shared.h"
#include "zerocopy.h"

static void queue(int fd) {
    char control[200];
    struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
    TRY(recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT));
}

/* Without option or flag there is no report; with both, each way to send has one. */
static void sends(struct ends e, const char *who) {
    say("%s", who);
    TRY(zerocopy(e.client));
    TRY(send(e.client, "flag", 4, MSG_ZEROCOPY));
    queue(e.client);
    option(e.client, 2);
    option(e.client, -1);
    TRY(setsockopt(e.client, SOL_SOCKET, SO_ZEROCOPY, &on, 1));
    option(e.client, 1);
    TRY(zerocopy(e.client));
    TRY(send(e.client, "option", 6, 0));
    queue(e.client);
    struct iovec part = {"abc", 3};
    struct mmsghdr two[2] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}};
    TRY(send(e.client, "send", 4, MSG_ZEROCOPY));
    completed(e.client, 0);
    TRY(sendto(e.client, "sendto", 6, MSG_ZEROCOPY, NULL, 0));
    completed(e.client, 1);
    TRY(sendmsg(e.client, &two->msg_hdr, MSG_ZEROCOPY));
    completed(e.client, 2);
    TRY(sendmmsg(e.client, two, 2, MSG_ZEROCOPY));
    completed(e.client, 4);
    got(e.server, 29);
    queue(e.client);
    /* Of another one's sends there is no report. */
    queue(e.server);
    TRY(send(e.server, "back", 4, MSG_ZEROCOPY));
    queue(e.server);
    got(e.client, 4);
    option(e.client, 0);
    TRY(zerocopy(e.client));
}

/* Without a report none of them sees an error; with one all do, until it is taken. */
static void waits(struct ends e, const char *who) {
    say("%s", who);
    option(e.client, 1);
    int level = MUST(epoll_create1(0)), edge = MUST(epoll_create1(0)), late = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 7}, all = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = 8};
    TRY(epoll_ctl(level, EPOLL_CTL_ADD, e.client, &v));
    TRY(epoll_ctl(level, EPOLL_CTL_ADD, e.client, &v));
    TRY(epoll_ctl(edge, EPOLL_CTL_ADD, e.client, &all));
    TRY(has_error(level));
    TRY(has_error(edge));
    TRY(send(e.client, "one", 3, MSG_ZEROCOPY));
    say("poll %x", await(e.client, POLLOUT) & POLLERR);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(e.client, &set);
    TRY(select(e.client + 1, &set, NULL, NULL, NULL));
    struct timeval now = {0};
    FD_ZERO(&set);
    FD_SET(e.client, &set);
    TRY(select(e.client + 1, NULL, NULL, &set, &now));
    TRY(error_in(level, 5000));
    TRY(has_error(level));
    TRY(error_in(edge, 5000));
    TRY(has_error(edge));
    TRY(epoll_ctl(late, EPOLL_CTL_ADD, e.client, &all));
    TRY(has_error(late));
    /* Sets that were changed, left, and closed. */
    v.data.u32 = 9;
    TRY(epoll_ctl(level, EPOLL_CTL_MOD, e.client, &v));
    TRY(has_error(level));
    TRY(epoll_ctl(late, EPOLL_CTL_DEL, e.client, NULL));
    TRY(has_error(late));
    close(late);
    completed(e.client, 0);
    TRY(has_error(level));
    TRY(has_error(edge));
    for (int i = 1; i < 3; i++) {
        TRY(send(e.client, "two", 3, MSG_ZEROCOPY));
        TRY(error_in(edge, 5000));
        TRY(error_in(level, 5000));
        completed(e.client, i);
        TRY(has_error(edge));
        TRY(has_error(level));
    }
    got(e.server, 9);
    TRY(epoll_ctl(level, EPOLL_CTL_DEL, e.client, NULL));
    TRY(epoll_ctl(level, EPOLL_CTL_DEL, e.client, NULL));
    TRY(send(e.client, "three", 5, MSG_ZEROCOPY));
    TRY(has_error(level));
    completed(e.client, 3);
    got(e.server, 5);
    /* One shot, and again after it was armed. */
    v.events = EPOLLONESHOT;
    TRY(epoll_ctl(level, EPOLL_CTL_ADD, e.client, &v));
    for (int i = 4; i < 6; i++) {
        TRY(send(e.client, "four", 4, MSG_ZEROCOPY));
        TRY(error_in(level, 5000));
        TRY(has_error(level));
        completed(e.client, i);
        TRY(epoll_ctl(level, EPOLL_CTL_MOD, e.client, &v));
        TRY(has_error(level));
    }
    got(e.server, 8);
    close(level), close(edge);
    /* A set that was closed with its member, and one that got its number. */
    int gone = MUST(epoll_create1(0));
    TRY(epoll_ctl(gone, EPOLL_CTL_ADD, e.client, &all));
    close(gone);
    int other = MUST(epoll_create1(0));
    TRY(other == gone);
    TRY(send(e.client, "five", 4, MSG_ZEROCOPY));
    say("poll %x", await(e.client, 0));
    TRY(has_error(other));
    completed(e.client, 6);
    got(e.server, 4);
    close(other);
}

static int by_epoll, seen;

static void *sleeps(void *fd) {
    struct epoll_event v = {.data.u32 = 5};
    int set = MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, (long)fd, &v));
    this_thread();
    seen = by_epoll ? error_in(set, 10000) : await((long)fd, 0);
    close(set);
    return NULL;
}

/* A thread that sleeps wakes for a report. */
static void threads(struct ends e, const char *who) {
    say("%s", who);
    option(e.client, 1);
    for (by_epoll = 0; by_epoll < 2; by_epoll++) {
        pthread_t t;
        registered_thread = 0;
        pthread_create(&t, NULL, sleeps, (void *)(long)e.client);
        await_thread_asleep();
        TRY(send(e.client, "wake", 4, MSG_ZEROCOPY));
        pthread_join(t, NULL);
        TRY(seen);
        completed(e.client, by_epoll);
    }
    got(e.server, 8);
}

/* A report that was not taken before the connection is shared. */
static void before_sharing(void) {
    struct ends e = ends();
    option(e.client, 1);
    int set = MUST(epoll_create1(0));
    TRY(send(e.client, "one", 3, MSG_ZEROCOPY));
    say("poll %x", await(e.client, 0));
    share();
    struct epoll_event v = {.data.u32 = 5};
    TRY(epoll_ctl(set, EPOLL_CTL_ADD, e.client, &v));
    TRY(error_in(set, 5000));
    completed(e.client, 0);
    TRY(send(e.client, "two", 3, MSG_ZEROCOPY));
    TRY(error_in(set, 5000));
    completed(e.client, 1);
    got(e.server, 6);
    close(e.client);
    TRY(has_error(set));
}

/* A program that inherits the connection has the option, and reports. */
static int inherits(int fd) {
    TRY(zerocopy(fd));
    TRY(send(fd, "exec", 4, MSG_ZEROCOPY));
    completed(fd, 0);
    option(fd, 0);
    return 0;
}

static void over_exec(void) {
    struct ends e = ends();
    char number[20];
    option(e.client, 1);
    snprintf(number, sizeof number, "%d", e.client);
    pid_t child = MUST(fork());
    int status;
    if (child == 0) execl("/proc/self/exe", "program", number, NULL), _exit(98);
    MUST(waitpid(child, &status, 0));
    TRY(status);
    got(e.server, 4);
}

int main(int count, char **arguments) {
    if (count > 1) return inherits(atoi(arguments[1]));
    own_and_shared(sends);
    own_and_shared(waits);
    own_and_shared(threads);
    before_sharing();
    over_exec();
}
