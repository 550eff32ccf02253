/* Receiving no bytes: read gives 0 at once, recv waits for data that it does not take. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[4];
    TRY(read(e.server, b, 0));
    TRY(recv(e.server, b, 0, MSG_DONTWAIT));
    TRY(send(e.client, "x", 1, 0));
    arrived(e.server, 1);
    TRY(recv(e.server, b, 0, 0));
    TRY(recv(e.server, b, 0, MSG_PEEK));
    TRY(recv(e.server, b, 4, 0));
}
