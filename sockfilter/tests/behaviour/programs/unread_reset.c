/* Closing with bytes unread resets. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[4];
    send(e.client, "unread", 6, 0);
    arrived(e.server, 6);
    TRY(close(e.server));
    TRY(read(e.client, b, 4));
    TRY(read(e.client, b, 4));
    TRY(send(e.client, b, 4, MSG_NOSIGNAL));
}
