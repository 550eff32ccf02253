/* close_range and closefrom close connections among other descriptors. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[4];
    MUST(dup2(e.server, 100));
    close(e.server);
    MUST(dup2(e.client, 200));
    TRY(close_range(50, 150, CLOSE_RANGE_CLOEXEC));
    TRY(fcntl(100, F_GETFD));
    TRY(close_range(90, 110, 0));
    TRY(fcntl(100, F_GETFD));
    TRY(read(e.client, b, 4));
    TRY(close_range(10, 5, 0));
    TRY(close_range(0, 1, 0x80));
    struct ends f = ends();
    MUST(dup2(f.server, 120));
    close(f.server);
    closefrom(110);
    TRY(fcntl(200, F_GETFD));
    TRY(read(f.client, b, 4));
    /* What works inside goes on. */
    struct ends g = ends();
    TRY(send(g.client, "x", 1, 0));
    TRY(recv(g.server, b, 4, 0));
}
