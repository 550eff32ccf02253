/* Reports of zero-copy sends in epoll sets that live on by a duplicate, or that a child shares. */
#include "shared.h"
#include "zerocopy.h"

/* A set with the connection, and a report for it. */
static int reporting(int client, unsigned data) {
    int set = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN | EPOLLOUT, .data.u32 = data};
    TRY(epoll_ctl(set, EPOLL_CTL_ADD, client, &v));
    TRY(send(client, "one", 3, MSG_ZEROCOPY));
    say("poll %x", await(client, 0));
    return set;
}

/* The only number by which the set is known from now on. */
static int by_duplicate(int set) {
    int other = MUST(dup(set));
    close(set);
    return other;
}

static void body(struct ends e, const char *who) {
    say("%s", who);
    option(e.client, 1);
    TRY(send(e.server, "in", 2, 0));
    arrived(e.client, 2);
    int set = reporting(e.client, 7);
    struct epoll_event events[4];
    for (int room = 4; room > 1; room--) {
        int n = epoll_wait(set, events, room, 5000);
        say("%d: %x of %u", n, events[0].events, events[0].data.u32);
    }
    TRY(error_in(set, 5000));
    /* The report is taken when the number is gone. */
    set = by_duplicate(set);
    completed(e.client, 0);
    TRY(has_error(set));
    struct epoll_event v = {.events = EPOLLIN | EPOLLET, .data.u32 = 8};
    TRY(epoll_ctl(set, EPOLL_CTL_MOD, e.client, &v));
    for (int i = 1; i < 3; i++) {
        TRY(send(e.client, "two", 3, MSG_ZEROCOPY));
        TRY(error_in(set, 5000));
        TRY(has_error(set));
        completed(e.client, i);
    }
    /* Changed by another number, while the first remains. */
    int both = MUST(dup(set));
    TRY(send(e.client, "two", 3, MSG_ZEROCOPY));
    v.data.u32 = 9;
    TRY(epoll_ctl(both, EPOLL_CTL_MOD, e.client, &v));
    TRY(error_in(set, 5000));
    TRY(send(e.client, "two", 3, MSG_ZEROCOPY));
    TRY(error_in(set, 5000));
    completed(e.client, 4);
    close(set), close(both);
    /* The connection is closed when the number is gone. */
    set = by_duplicate(reporting(e.client, 10));
    TRY(error_in(set, 5000));
    close(e.client);
    TRY(has_error(set));
    close(set);
}

/* A child's report ends with the child. */
static void of_child(void) {
    struct ends e = ends();
    share();
    option(e.client, 1);
    int set = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN, .data.u32 = 7};
    TRY(epoll_ctl(set, EPOLL_CTL_ADD, e.client, &v));
    pid_t child = MUST(fork());
    if (child == 0) {
        MUST(send(e.client, "child", 5, MSG_ZEROCOPY));
        _exit(error_in(set, 5000));
    }
    int status;
    MUST(waitpid(child, &status, 0));
    TRY(WEXITSTATUS(status));
    got(e.server, 5);
    /* The kernel's reports are of all processes, the filter's of this one. */
    char control[200];
    struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
    while (recvmsg(e.client, &m, MSG_ERRQUEUE) != -1) m.msg_controllen = sizeof control;
    TRY(has_error(set));
    close(set), close(e.client), close(e.server);
}

int main(void) {
    own_and_shared(body);
    of_child();
}
