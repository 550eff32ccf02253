/* Every call on a closed socket gives EBADF. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[4];
    int fd = e.server, n;
    socklen_t len = sizeof n;
    struct iovec v = {b, 4};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct sockaddr_in a = here(1);
    TRY(close(fd));
    TRY(close(fd));
    TRY(read(fd, b, 4));
    TRY(write(fd, b, 4));
    TRY(recv(fd, b, 4, 0));
    TRY(send(fd, b, 4, 0));
    TRY(readv(fd, &v, 1));
    TRY(writev(fd, &v, 1));
    TRY(recvmsg(fd, &m, 0));
    TRY(sendmsg(fd, &m, 0));
    TRY(shutdown(fd, SHUT_RDWR));
    TRY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &n, &len));
    TRY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &n, sizeof n));
    TRY(getsockname(fd, (struct sockaddr *)&a, &len));
    TRY(getpeername(fd, (struct sockaddr *)&a, &len));
    TRY(listen(fd, 1));
    TRY(accept(fd, NULL, NULL));
    TRY(connect(fd, (struct sockaddr *)&a, sizeof a));
    TRY(fcntl(fd, F_GETFL));
    TRY(dup(fd));
}
