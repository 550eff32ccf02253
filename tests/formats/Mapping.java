import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.math.BigInteger;
import java.nio.charset.Charset;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;

import org.agrona.DirectBuffer;
import org.agrona.MutableDirectBuffer;
import uk.co.real_logic.sbe.PrimitiveType;
import uk.co.real_logic.sbe.ir.Signal;
import uk.co.real_logic.sbe.ir.Token;

/** The JSON mapping of docs/formats.md over the codecs that sbe-tool generates. */
final class Mapping {
    private static final BigInteger EXACT = BigInteger.ONE.shiftLeft(53).subtract(BigInteger.ONE);

    private Mapping() {
    }

    static int encode(final Codecs codecs, final JsonObject message, final MutableDirectBuffer buffer) throws Exception {
        final String name = message.get("$message").getAsString();
        final Object encoder = codecs.make(name + "Encoder");
        Codecs.call(encoder, "wrapAndApplyHeader", buffer, 0, codecs.make("MessageHeaderEncoder"));
        record(encoder, codecs.message(name), message);
        return (Integer)Codecs.call(encoder, "limit");
    }

    private static void record(final Object encoder, final List<Token> tokens, final JsonObject object) throws Exception {
        for (final Codecs.Member member : Codecs.members(tokens)) {
            final JsonElement value = object.get(member.name());
            if (member.token().signal() == Signal.BEGIN_GROUP) {
                final JsonArray entries = value == null || value.isJsonNull() ? new JsonArray() : value.getAsJsonArray();
                final Object group = Codecs.call(encoder, member.name() + "Count", entries.size());
                for (final JsonElement entry : entries) {
                    Codecs.call(group, "next");
                    record(group, member.tokens(), entry.getAsJsonObject());
                }
            } else if (member.token().signal() == Signal.BEGIN_VAR_DATA) {
                final byte[] bytes = bytes(value, charset(member));
                Codecs.call(encoder, "put" + upper(member.name()), bytes, 0, bytes.length);
            } else if (!member.isConstant()) {
                field(encoder, member, value == null ? JsonNull.INSTANCE : value);
            }
        }
    }

    private static void field(final Object encoder, final Codecs.Member member, final JsonElement value) throws Exception {
        final String name = member.name();
        switch (member.type().signal()) {
            case BEGIN_COMPOSITE -> record(Codecs.call(encoder, name), member.tokens(), value.getAsJsonObject());
            case BEGIN_SET -> {
                final Object set = Codecs.call(encoder, name);
                Codecs.call(set, "clear");
                for (final JsonElement choice : value.getAsJsonArray()) {
                    Codecs.call(set, choice.getAsString(), true);
                }
            }
            case BEGIN_ENUM -> {
                final Class<?> type = enumOf(encoder, name);
                final String constant = value.isJsonNull() ? "NULL_VAL" : value.getAsString();
                Codecs.call(encoder, name, type.getField(constant).get(null));
            }
            default -> encoding(encoder, member, value);
        }
    }

    private static void encoding(final Object encoder, final Codecs.Member member, final JsonElement value)
        throws Exception {
        final Token type = member.type();
        final String name = member.name();
        final boolean text = type.encoding().primitiveType() == PrimitiveType.CHAR;
        if (type.arrayLength() == 1) {
            Codecs.call(encoder, name, value.isJsonNull() ? nullOf(encoder, name) : number(value, member));
        } else if (text) {
            final byte[] bytes = value.isJsonNull() ? new byte[0] : bytes(value, charset(member));
            Codecs.call(encoder, "put" + upper(name), Arrays.copyOf(bytes, type.arrayLength()), 0);
        } else {
            int index = 0;
            for (final JsonElement element : value.getAsJsonArray()) {
                Codecs.call(encoder, name, index++, element.isJsonNull() ? nullOf(encoder, name) : number(element, member));
            }
        }
    }

    private static Number number(final JsonElement value, final Codecs.Member member) {
        final PrimitiveType primitive = member.type().encoding().primitiveType();
        if (primitive == PrimitiveType.CHAR) {
            final byte[] bytes = bytes(value, charset(member));
            return bytes.length == 0 ? (byte)0 : bytes[0];
        }
        if (primitive == PrimitiveType.FLOAT || primitive == PrimitiveType.DOUBLE) {
            return Double.valueOf(value.getAsString());
        }
        return new BigInteger(value.getAsString());
    }

    static JsonObject decode(final Codecs codecs, final DirectBuffer buffer) throws Exception {
        final Object header = codecs.make("MessageHeaderDecoder");
        Codecs.call(header, "wrap", buffer, 0);
        final int template = ((Number)Codecs.call(header, "templateId")).intValue();
        final List<Token> tokens = codecs.ir.getMessage(template);
        final String name = tokens.get(0).name();
        final Object decoder = codecs.make(name + "Decoder");
        Codecs.call(decoder, "wrapAndApplyHeader", buffer, 0, header);
        final JsonObject object = new JsonObject();
        object.addProperty("$message", name);
        members(decoder, tokens, object, ((Number)Codecs.call(header, "version")).intValue());
        return object;
    }

    private static void members(final Object decoder, final List<Token> tokens, final JsonObject object, final int version)
        throws Exception {
        for (final Codecs.Member member : Codecs.members(tokens)) {
            final String name = member.name();
            final boolean absent = member.token().version() > version;
            if (member.token().signal() == Signal.BEGIN_GROUP) {
                final JsonArray entries = new JsonArray();
                final Object group = Codecs.call(decoder, name);
                while ((Boolean)Codecs.call(group, "hasNext")) {
                    Codecs.call(group, "next");
                    final JsonObject entry = new JsonObject();
                    members(group, member.tokens(), entry, version);
                    entries.add(entry);
                }
                object.add(name, entries);
            } else if (member.token().signal() == Signal.BEGIN_VAR_DATA) {
                final byte[] bytes = new byte[((Number)Codecs.call(decoder, name + "Length")).intValue()];
                Codecs.call(decoder, "get" + upper(name), bytes, 0, bytes.length);
                object.add(name, absent ? JsonNull.INSTANCE : text(bytes, charset(member)));
            } else {
                object.add(name, value(decoder, member, absent, version));
            }
        }
    }

    private static JsonElement value(final Object decoder, final Codecs.Member member, final boolean absent,
        final int version) throws Exception {
        final String name = member.name();
        switch (member.type().signal()) {
            case BEGIN_COMPOSITE: {
                final Object composite = Codecs.call(decoder, name);
                if (absent) {
                    return expectNull(composite == null, name);
                }
                final JsonObject object = new JsonObject();
                members(composite, member.tokens(), object, version);
                return object;
            }
            case BEGIN_SET: {
                final Object set = Codecs.call(decoder, name);
                if (absent) {
                    return expectNull(set == null, name);
                }
                final JsonArray choices = new JsonArray();
                for (final Token choice : member.tokens()) {
                    if (choice.signal() == Signal.CHOICE && (Boolean)Codecs.call(set, choice.name())) {
                        choices.add(choice.name());
                    }
                }
                return choices;
            }
            case BEGIN_ENUM: {
                final String constant = ((Enum<?>)Codecs.call(decoder, name)).name();
                final boolean isNull = constant.equals("NULL_VAL");
                return absent || isNull ? expectNull(isNull, name) : new JsonPrimitive(constant);
            }
            default:
                return decoding(decoder, member, absent);
        }
    }

    private static JsonElement decoding(final Object decoder, final Codecs.Member member, final boolean absent)
        throws Exception {
        final Token type = member.type();
        final String name = member.name();
        final boolean text = type.encoding().primitiveType() == PrimitiveType.CHAR;
        if (member.isConstant()) {
            final Object value = Codecs.call(decoder, name);
            return value instanceof Number constant ? number(constant, member) : new JsonPrimitive((String)value);
        }
        if (type.arrayLength() == 1) {
            final Object value = Codecs.call(decoder, name);
            if (absent || member.isOptional()) {
                final boolean isNull = value.equals(nullOf(decoder, name));
                if (absent || isNull) {
                    return expectNull(isNull, name);
                }
            }
            return number((Number)value, member);
        }
        if (text) {
            final byte[] bytes = new byte[type.arrayLength()];
            Codecs.call(decoder, "get" + upper(name), bytes, 0);
            int length = 0;
            while (length < bytes.length && bytes[length] != 0) {
                length++;
            }
            if (absent || member.isOptional() && length == 0) {
                return expectNull(length == 0, name);
            }
            return text(Arrays.copyOf(bytes, length), charset(member));
        }
        final JsonArray numbers = new JsonArray();
        for (int index = 0; index < type.arrayLength(); index++) {
            numbers.add(number((Number)Codecs.call(decoder, name, index), member));
        }
        return absent ? JsonNull.INSTANCE : numbers;
    }

    private static JsonElement expectNull(final boolean isNull, final String name) {
        if (!isNull) {
            throw new IllegalStateException(name + " is absent, and the codec does not have it as null");
        }
        return JsonNull.INSTANCE;
    }

    private static JsonElement number(final Number value, final Codecs.Member member) {
        switch (member.type().encoding().primitiveType()) {
            case CHAR:
                return value.byteValue() == 0 ? new JsonPrimitive("") : text(new byte[]{value.byteValue()}, charset(member));
            case FLOAT:
            case DOUBLE:
                return Double.isFinite(value.doubleValue())
                    ? new JsonPrimitive(Double.valueOf(value.toString())) : new JsonPrimitive(value.toString());
            case UINT64:
                return integer(new BigInteger(Long.toUnsignedString(value.longValue())));
            default:
                return integer(BigInteger.valueOf(value.longValue()));
        }
    }

    private static JsonElement integer(final BigInteger number) {
        return number.abs().compareTo(EXACT) > 0 ? new JsonPrimitive(number.toString()) : new JsonPrimitive(number);
    }

    private static Object nullOf(final Object codec, final String name) throws Exception {
        return Codecs.callAs(codec.getClass(), null, name + "NullValue");
    }

    private static Class<?> enumOf(final Object encoder, final String name) {
        return Arrays.stream(encoder.getClass().getMethods())
            .filter(method -> method.getName().equals(name) && method.getParameterCount() == 1)
            .map(method -> method.getParameterTypes()[0]).filter(Class::isEnum).findFirst().orElseThrow();
    }

    /** The encoding of text; null for binary. */
    private static String charset(final Codecs.Member member) {
        final boolean data = member.token().signal() == Signal.BEGIN_VAR_DATA;
        final Token type = data ? member.tokens().get(3) : member.type();
        final String name = type.encoding().characterEncoding();
        if (name != null && !name.isEmpty()) {
            return name;
        }
        return type.encoding().primitiveType() == PrimitiveType.CHAR ? "US-ASCII" : null;
    }

    private static JsonElement text(final byte[] bytes, final String charset) {
        final String base64 = Base64.getEncoder().encodeToString(bytes);
        if (charset == null) {
            return new JsonPrimitive(base64);
        }
        final String text = new String(bytes, Charset.forName(charset));
        if (Arrays.equals(text.getBytes(Charset.forName(charset)), bytes) && !text.contains("\ufffd")) {
            return new JsonPrimitive(text);
        }
        final JsonObject object = new JsonObject();
        object.addProperty("base64", base64);
        return object;
    }

    private static byte[] bytes(final JsonElement value, final String charset) {
        if (value == null || value.isJsonNull()) {
            return new byte[0];
        }
        if (value.isJsonObject()) {
            return Base64.getDecoder().decode(value.getAsJsonObject().get("base64").getAsString());
        }
        final String text = value.getAsString();
        return charset == null ? Base64.getDecoder().decode(text) : text.getBytes(Charset.forName(charset));
    }

    private static String upper(final String name) {
        return Character.toUpperCase(name.charAt(0)) + name.substring(1);
    }
}
