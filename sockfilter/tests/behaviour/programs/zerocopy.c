/* Zero-copy sends: accelerated connections copy, and report each send as complete and copied, as the kernel does on loopback. */
#include "behaviour.h"
#include "zerocopy.h"

/* A listener and a client that ask for zero-copy sends before they listen and connect, as gRPC's do. */
static void both_ask(int s, struct sockaddr *to, socklen_t len) {
    int c = MUST(socket(to->sa_family, SOCK_STREAM, 0));
    char buffer[100] = "";
    TRY(setsockopt(s, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    TRY(setsockopt(c, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    TRY(listen(s, 5));
    TRY(connect(c, to, len));
    int server = MUST(accept(s, NULL, NULL));
    TRY(zerocopy(server));
    TRY(send(c, "one", 3, MSG_ZEROCOPY));
    TRY(send(c, "two", 3, MSG_ZEROCOPY));
    completed(c, 1);
    TRY(recv(server, buffer, 6, MSG_WAITALL));
    say("%.6s", buffer);
    struct iovec part = {"three", 5};
    TRY(sendmsg(server, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, MSG_ZEROCOPY));
    completed(server, 0);
    TRY(recv(c, buffer, 5, MSG_WAITALL));
    close(c), close(server), close(s);
}

int main(void) {
    struct ends e = ends();
    char buffer[100] = "";
    /* Without the option the flag counts for nothing. */
    TRY(send(e.client, "flag", 4, MSG_ZEROCOPY));
    TRY(recv(e.server, buffer, 4, MSG_WAITALL));
    TRY(recvmsg(e.client, &(struct msghdr){0}, MSG_ERRQUEUE | MSG_DONTWAIT));
    TRY(recv(e.client, buffer, 4, MSG_ERRQUEUE | MSG_DONTWAIT));
    TRY(setsockopt(e.client, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    TRY(zerocopy(e.client));
    /* Without the flag the option counts for nothing; with both, epoll reports the completion. */
    TRY(send(e.client, "option", 6, 0));
    int set = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLET};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, e.client, &event));
    TRY(epoll_wait(set, &event, 1, 0));
    TRY(send(e.client, "both", 4, MSG_ZEROCOPY));
    TRY(epoll_wait(set, &event, 1, 5000));
    say("events %x", event.events);
    completed(e.client, 0);
    TRY(recv(e.server, buffer, 10, MSG_WAITALL));

    int s = bound();
    struct sockaddr_in a = where(s);
    both_ask(s, (struct sockaddr *)&a, sizeof a);
    s = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    socklen_t len = sizeof six;
    MUST(bind(s, (struct sockaddr *)&six, len));
    MUST(getsockname(s, (struct sockaddr *)&six, &len));
    both_ask(s, (struct sockaddr *)&six, len);
}
