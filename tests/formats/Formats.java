import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Objects;

import org.agrona.concurrent.UnsafeBuffer;

/**
 * Vectors of SBE messages from the codecs that sbe-tool generates.
 *
 * <p>make SCHEMAS CASES: prints a line for each case and reader: writer, reader, the bytes that the writer's codec encodes, and the
 * JSON of what the reader's codec decodes from them.
 *
 * <p>compare SCHEMAS MESSAGES: decodes messages that were written elsewhere and compares them with their JSON.
 */
public final class Formats {
    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    private Formats() {
    }

    public static void main(final String[] arguments) throws Exception {
        final Path schemas = Path.of(arguments[1]);
        final Map<String, Codecs> all = Codecs.load(schemas, Path.of(arguments[3]));
        final List<JsonObject> lines = new ArrayList<>();
        for (final String line : Files.readAllLines(Path.of(arguments[2]))) {
            if (!line.isBlank()) {
                lines.add(JsonParser.parseString(line).getAsJsonObject());
            }
        }
        if (arguments[0].equals("make")) {
            make(all, lines);
        } else {
            compare(all, lines);
        }
    }

    private static void make(final Map<String, Codecs> all, final List<JsonObject> cases) throws Exception {
        for (final JsonObject one : cases) {
            for (final String order : List.of("le", "be")) {
                final String writer = one.get("writer").getAsString() + "-" + order;
                final UnsafeBuffer buffer = new UnsafeBuffer(new byte[1 << 17]);
                final int length = Mapping.encode(all.get(writer), one.getAsJsonObject("message"), buffer);
                final byte[] bytes = new byte[length];
                buffer.getBytes(0, bytes);
                for (final JsonElement name : one.getAsJsonArray("readers")) {
                    final String reader = name.getAsString() + "-" + order;
                    final JsonObject line = new JsonObject();
                    line.addProperty("writer", writer);
                    line.addProperty("reader", reader);
                    line.addProperty("hex", HexFormat.of().formatHex(bytes));
                    line.add("json", Mapping.decode(all.get(reader), new UnsafeBuffer(bytes)));
                    System.out.println(GSON.toJson(line));
                }
            }
        }
    }

    private static void compare(final Map<String, Codecs> all, final List<JsonObject> messages) throws Exception {
        int different = 0;
        for (final JsonObject one : messages) {
            final Codecs codecs = all.get(one.get("schema").getAsString());
            final byte[] bytes = HexFormat.of().parseHex(one.get("hex").getAsString());
            final JsonElement expected = one.get("json");
            final JsonElement found = Mapping.decode(codecs, new UnsafeBuffer(bytes));
            final UnsafeBuffer again = new UnsafeBuffer(new byte[1 << 17]);
            final int length = Mapping.encode(codecs, expected.getAsJsonObject(), again);
            final byte[] encoded = new byte[length];
            again.getBytes(0, encoded);
            if (!equal(expected, found)) {
                different++;
                System.err.println("written: " + GSON.toJson(expected) + "\ndecoded: " + GSON.toJson(found));
            } else if (!java.util.Arrays.equals(bytes, encoded)) {
                different++;
                System.err.println("written: " + HexFormat.of().formatHex(bytes) + "\nencoded: "
                    + HexFormat.of().formatHex(encoded) + "\n" + GSON.toJson(expected));
            }
        }
        System.err.println("formats: sbe-tool decodes and encodes " + messages.size() + " messages, " + different
            + " of them otherwise than csp-formats");
        if (different > 0 || messages.isEmpty()) {
            System.exit(1);
        }
    }

    /** Equality that does not care for the digits of a float: the shortest ones differ between printers. */
    private static boolean equal(final JsonElement left, final JsonElement right) {
        if (left.isJsonObject() && right.isJsonObject()) {
            final var names = left.getAsJsonObject().keySet();
            return names.equals(right.getAsJsonObject().keySet()) && names.stream().allMatch(
                name -> equal(left.getAsJsonObject().get(name), right.getAsJsonObject().get(name)));
        }
        if (left.isJsonArray() && right.isJsonArray()) {
            final var one = left.getAsJsonArray();
            final var other = right.getAsJsonArray();
            boolean same = one.size() == other.size();
            for (int i = 0; same && i < one.size(); i++) {
                same = equal(one.get(i), other.get(i));
            }
            return same;
        }
        if (left instanceof JsonPrimitive one && right instanceof JsonPrimitive other && one.isNumber() && other.isNumber()) {
            final boolean fraction = (one + " " + other).matches(".*[.eE].*");
            return fraction ? one.getAsDouble() == other.getAsDouble() || one.getAsFloat() == other.getAsFloat()
                : one.getAsBigInteger().equals(other.getAsBigInteger());
        }
        return Objects.equals(left, right);
    }
}
