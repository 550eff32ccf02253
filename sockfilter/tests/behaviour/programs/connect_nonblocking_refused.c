/* A refused non-blocking connect reports the error once. */
#include "behaviour.h"

int main(void) {
    int b = bound(), c = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), error = 5;
    struct sockaddr_in a = where(b);
    socklen_t len = sizeof error;
    int first = connect(c, (struct sockaddr *)&a, sizeof a);
    say("%d", first == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED));
    struct pollfd p = {c, POLLOUT | POLLIN | POLLRDHUP};
    TRY(poll(&p, 1, 5000));
    say("%x", p.revents);
    TRY(getsockopt(c, SOL_SOCKET, SO_ERROR, &error, &len));
    say("%s", strerrorname_np(error));
    TRY(getsockopt(c, SOL_SOCKET, SO_ERROR, &error, &len));
    say("%d", error);
    char x;
    TRY(recv(c, &x, 1, 0));
    TRY(send(c, &x, 1, MSG_NOSIGNAL));
    TRY(getpeername(c, (struct sockaddr *)&a, &len));
}
