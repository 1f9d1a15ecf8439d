package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/apiserver/authn"
)

// appendJSON appends the event at a stage, without a line break. The fields are in the order of the API type. truncated omits the
// bodies and adds an annotation.
func (e *Event) appendJSON(to []byte, at stage, now time.Time, truncated bool) []byte {
	to = append(to, `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"`...)
	to = append(to, levelNames[e.auditConfig.level]...)
	to = append(to, `","auditID":`...)
	to = appendString(to, e.id)
	to = append(to, `,"stage":"`...)
	to = append(to, at.String()...)
	to = append(to, `","requestURI":`...)
	to = appendString(to, e.uri)
	to = append(to, `,"verb":`...)
	to = appendString(to, e.verb)
	to = append(to, `,"user":`...)
	to = appendUser(to, &e.user)
	if e.impersonated != nil {
		to = append(to, `,"impersonatedUser":`...)
		to = appendUser(to, e.impersonated)
	}
	if e.constraint != "" {
		to = append(to, `,"authenticationMetadata":{"impersonationConstraint":`...)
		to = append(appendString(to, e.constraint), '}')
	}
	if len(e.addresses) > 0 {
		to = append(to, `,"sourceIPs":`...)
		to = append(to, e.addresses...)
	}
	to = appendField(to, `,"userAgent":`, e.agent)
	if e.hasObject {
		to = append(to, `,"objectRef":`...)
		to = e.object.appendJSON(to)
	}
	to = e.appendStatus(to)
	if !truncated && at != stageReceived {
		to = appendBody(to, `,"requestObject":`, e.request)
		to = appendBody(to, `,"responseObject":`, e.response)
	}
	to = append(to, `,"requestReceivedTimestamp":"`...)
	to = appendTime(to, e.received)
	to = append(to, `","stageTimestamp":"`...)
	to = appendTime(to, now)
	to = append(to, '"')
	to = e.appendAnnotations(to, truncated)
	return append(to, '}')
}

func (e *Event) appendAnnotations(to []byte, truncated bool) []byte {
	if len(e.annotations) == 0 && !truncated {
		return to
	}
	to = append(to, `,"annotations":{`...)
	if truncated {
		to = append(to, `"audit.k8s.io/truncated":"true",`...)
	}
	for i := range e.annotations {
		to = appendString(to, e.annotations[i].key)
		to = append(to, ':')
		to = appendString(to, e.annotations[i].value)
		to = append(to, ',')
	}
	to[len(to)-1] = '}'
	return to
}

// appendStatus appends the response code, and the Status if there is one.
func (e *Event) appendStatus(to []byte) []byte {
	if e.code == 0 && e.status == nil {
		return to
	}
	to = append(to, `,"responseStatus":{"metadata":{}`...)
	if s := e.status; s != nil {
		to = appendField(to, `,"status":`, s.Status)
		to = appendField(to, `,"message":`, s.Message)
		to = appendField(to, `,"reason":`, string(s.Reason))
		if s.Details != nil {
			to = append(to, `,"details":`...)
			to = appendDetails(to, s.Details)
		}
	}
	if e.code != 0 {
		to = append(to, `,"code":`...)
		to = strconv.AppendInt(to, int64(e.code), 10)
	}
	return append(to, '}')
}

func appendDetails(to []byte, d *metav1.StatusDetails) []byte {
	start := len(to)
	to = appendField(to, `,"name":`, d.Name)
	to = appendField(to, `,"group":`, d.Group)
	to = appendField(to, `,"kind":`, d.Kind)
	to = appendField(to, `,"uid":`, string(d.UID))
	if len(d.Causes) > 0 {
		if causes, err := json.Marshal(d.Causes); err == nil {
			to = append(append(to, `,"causes":`...), causes...)
		}
	}
	if d.RetryAfterSeconds != 0 {
		to = append(to, `,"retryAfterSeconds":`...)
		to = strconv.AppendInt(to, int64(d.RetryAfterSeconds), 10)
	}
	return closeObject(to, start)
}

// closeObject ends an object whose fields were appended from start on, each preceded by a comma.
func closeObject(to []byte, start int) []byte {
	if len(to) == start {
		return append(to, '{', '}')
	}
	to[start] = '{'
	return append(to, '}')
}

func (o *objectReference) appendJSON(to []byte) []byte {
	start := len(to)
	to = appendField(to, `,"resource":`, o.resource)
	to = appendField(to, `,"namespace":`, o.namespace)
	to = appendField(to, `,"name":`, o.name)
	to = appendField(to, `,"uid":`, o.uid)
	to = appendField(to, `,"apiGroup":`, o.group)
	to = appendField(to, `,"apiVersion":`, o.version)
	to = appendField(to, `,"resourceVersion":`, o.resourceVersion)
	to = appendField(to, `,"subresource":`, o.subresource)
	return closeObject(to, start)
}

func appendUser(to []byte, u *authn.User) []byte {
	start := len(to)
	to = appendField(to, `,"username":`, u.Username)
	to = appendField(to, `,"uid":`, u.UID)
	if len(u.Groups) > 0 {
		to = append(to, `,"groups":`...)
		to = appendStrings(to, u.Groups)
	}
	if len(u.Extra) > 0 {
		to = append(to, `,"extra":{`...)
		for _, key := range slices.Sorted(maps.Keys(u.Extra)) {
			to = append(appendString(to, key), ':')
			to = append(appendStrings(to, u.Extra[key]), ',')
		}
		to[len(to)-1] = '}'
	}
	return closeObject(to, start)
}

func appendField(to []byte, name, value string) []byte {
	if value == "" {
		return to
	}
	return appendString(append(to, name...), value)
}

func appendBody(to []byte, name string, body []byte) []byte {
	if len(body) == 0 {
		return to
	}
	return append(append(to, name...), body...)
}

func appendStrings(to []byte, values []string) []byte {
	to = append(to, '[')
	for i, value := range values {
		if i > 0 {
			to = append(to, ',')
		}
		to = appendString(to, value)
	}
	return append(to, ']')
}

// unescaped are the characters that are not escaped in a JSON string.
var unescaped = func() (plain [256]bool) {
	for c := ' '; c < 0x7f; c++ {
		plain[c] = !strings.ContainsRune(`"\<>&`, c)
	}
	return plain
}()

func appendString(to []byte, s string) []byte {
	for i := range len(s) {
		if !unescaped[s[i]] {
			return appendEscaped(to, s)
		}
	}
	to = append(to, '"')
	to = append(to, s...)
	return append(to, '"')
}

// appendEscaped is appendString for strings with characters to escape: quotes are common in reasons, ampersands in URIs.
func appendEscaped(to []byte, s string) []byte {
	start := len(to)
	to = append(to, '"')
	done := 0
	for i := range len(s) {
		if unescaped[s[i]] {
			continue
		}
		to = append(to, s[done:i]...)
		done = i + 1
		switch c := s[i]; c {
		case '"', '\\':
			to = append(to, '\\', c)
		case '&':
			to = append(to, `\u0026`...)
		case '<':
			to = append(to, `\u003c`...)
		case '>':
			to = append(to, `\u003e`...)
		default:
			quoted, err := json.Marshal(s)
			if err != nil {
				quoted = []byte(`""`)
			}
			return append(to[:start], quoted...)
		}
	}
	return append(append(to, s[done:]...), '"')
}

// appendTime appends a time with microseconds, "2006-01-02T15:04:05.000000Z".
func appendTime(to []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	to = appendDigits(to, year, 4)
	to = appendDigits(append(to, '-'), int(month), 2)
	to = appendDigits(append(to, '-'), day, 2)
	to = appendDigits(append(to, 'T'), hour, 2)
	to = appendDigits(append(to, ':'), minute, 2)
	to = appendDigits(append(to, ':'), second, 2)
	to = appendDigits(append(to, '.'), t.Nanosecond()/1000, 6)
	return append(to, 'Z')
}

func appendDigits(to []byte, n, width int) []byte {
	to = append(to, "000000"[:width]...)
	for i := len(to) - 1; n > 0; i-- {
		to[i] = byte('0' + n%10)
		n /= 10
	}
	return to
}

// compact removes white space from JSON. It returns nil for invalid JSON.
func compact(body []byte) []byte {
	var out bytes.Buffer
	if err := json.Compact(&out, body); err != nil {
		return nil
	}
	return out.Bytes()
}

// withoutManagedFields is compact for an object, a list or a table, without the managed fields of any of them.
func withoutManagedFields(body []byte) []byte {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil
	}
	if obj, ok := value.(map[string]any); ok {
		dropManagedFields(obj)
		for _, key := range []string{"items", "rows"} {
			items, _ := obj[key].([]any)
			for _, item := range items {
				item, _ := item.(map[string]any)
				if key == "rows" {
					item, _ = item["object"].(map[string]any)
				}
				dropManagedFields(item)
			}
		}
	}
	out, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	return out
}

func dropManagedFields(obj map[string]any) {
	if metadata, ok := obj["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
	}
}

// appendLegacy appends the event in the legacy text format, without a line break.
func (e *Event) appendLegacy(to []byte, at stage) []byte {
	user, groups := "<none>", "<none>"
	if e.user.Username != "" {
		user = e.user.Username
		if len(e.user.Groups) > 0 {
			groups = quotedList(e.user.Groups)
		}
	}
	as, asGroups := "<self>", "<lookup>"
	if e.impersonated != nil {
		as = e.impersonated.Username
		if e.impersonated.Groups != nil {
			asGroups = quotedList(e.impersonated.Groups)
		}
	}
	namespace := "<none>"
	if e.object.namespace != "" {
		namespace = e.object.namespace
	}
	response := "<deferred>"
	if e.code != 0 {
		response = strconv.Itoa(int(e.code))
	}
	address := "<unknown>"
	var all []string
	if json.Unmarshal(e.addresses, &all) == nil && len(all) > 0 {
		address = all[0]
	}
	return fmt.Appendf(to, `%s AUDIT: id=%q stage=%q ip=%q method=%q user=%q groups=%q as=%q asgroups=%q user-agent=%q namespace=%q uri=%q response="%s"`,
		e.received.Format(time.RFC3339Nano), e.id, at.String(), address, e.verb, user, groups, as, asGroups, e.agent, namespace, e.uri, response)
}

func quotedList(values []string) string {
	quoted := make([]string, len(values))
	for i, value := range values {
		quoted[i] = strconv.Quote(value)
	}
	return strings.Join(quoted, ",")
}
