package attack

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A user creates many definitions, each with objects, and deletes them. All are served, and another user is served meanwhile.
func TestManyDefinitions(t *testing.T) {
	a := start(t, patient)
	const definitions, writers = 300, 8
	writer, other := a.user("writer"), a.user("other")
	before := a.usage()
	var next atomic.Int64
	each := func(do func(i int)) {
		next.Store(0)
		var running sync.WaitGroup
		for range writers {
			running.Go(func() {
				for i := next.Add(1); i <= definitions && !t.Failed(); i = next.Add(1) {
					do(int(i))
				}
			})
		}
		var done atomic.Bool
		var reading sync.WaitGroup
		reading.Go(func() {
			for !done.Load() {
				if code, body := a.as(other, http.MethodGet, "/api/v1/namespaces/default/configmaps/none", ""); code != http.StatusNotFound {
					t.Errorf("another user got %d %s", code, body)
				}
			}
		})
		running.Wait()
		done.Store(true)
		reading.Wait()
	}
	schema := `{"type":"object","properties":{"spec":{"type":"object","properties":{` +
		repeated(50, func(i int) string {
			return fmt.Sprintf(`"property%d":{"type":"string","description":"what it is for"}`, i)
		}) + `}}}}`
	each(func(i int) {
		body := strings.NewReplacer("foos", fmt.Sprintf("foos%d", i), `"foo"`, fmt.Sprintf(`"foo%d"`, i), `"Foo"`, fmt.Sprintf(`"Foo%d"`, i), `"FooList"`, fmt.Sprintf(`"Foo%dList"`, i),
			"example.com", fmt.Sprintf("group%d.example.com", i%20)).Replace(definitionOf(schema))
		if code, text := a.as(writer, http.MethodPost, definitionsPath, body); code != http.StatusCreated {
			t.Errorf("definition %d: %d %.300s", i, code, text)
		}
	})
	path := func(i int) string {
		return fmt.Sprintf("/apis/group%d.example.com/v1/namespaces/default/foos%d", i%20, i)
	}
	each(func(i int) {
		body := fmt.Sprintf(`{"apiVersion":"group%d.example.com/v1","kind":"Foo%d","metadata":{"name":"a"},"spec":{"property1":"x"}}`, i%20, i)
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			code, text := a.as(writer, http.MethodPost, path(i), body)
			if code == http.StatusCreated {
				return
			}
			if time.Now().After(end) {
				t.Errorf("definition %d is not served: %d %.300s", i, code, text)
				return
			}
		}
	})
	if text := string(a.get("/openapi/v3")); strings.Count(text, "/openapi/v3/apis/group") < 20 {
		t.Errorf("OpenAPI lists %s", text)
	}
	after := a.usage()
	t.Logf("%d definitions take %.0f KB of heap each, with their history", definitions, (after.heap-before.heap)/definitions/1024)
	a.expectBoundedMemory()
	each(func(i int) {
		name := fmt.Sprintf("%s/foos%d.group%d.example.com", definitionsPath, i, i%20)
		if code, text := a.as(writer, http.MethodDelete, name, ""); code != http.StatusOK {
			t.Errorf("delete definition %d: %d %.300s", i, code, text)
		}
	})
	a.eventually(func() bool {
		code, _ := a.as(writer, http.MethodGet, path(definitions), "")
		return code == http.StatusNotFound
	}, func() string { return "a deleted definition is served" })
	var now usage
	a.eventually(func() bool {
		now = a.usage()
		return now.seats <= before.seats && now.inFlight <= before.inFlight && now.goroutines <= before.goroutines+leftGoroutines
	}, func() string {
		return fmt.Sprintf("the server still has %+v; it had %+v before the attack", now, before)
	})
}
