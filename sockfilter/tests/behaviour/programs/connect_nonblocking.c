/* A non-blocking connect: in progress, then writable, then connected. */
#include "behaviour.h"

int main(void) {
    int s = listener(), c = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), error = 5;
    struct sockaddr_in a = where(s);
    socklen_t len = sizeof error;
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    struct pollfd p = {c, POLLOUT | POLLIN};
    TRY(poll(&p, 1, 5000));
    say("%x", p.revents);
    TRY(getsockopt(c, SOL_SOCKET, SO_ERROR, &error, &len));
    say("%d", error);
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    int t = accept(s, NULL, NULL);
    TRY(send(t, "x", 1, 0));
    await(c, POLLIN);
    char b;
    TRY(recv(c, &b, 1, 0));
}
