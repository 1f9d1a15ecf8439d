package cleanup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// served is discovery of groups, each with resources: "a/v1": "things+ boxes". Behind a resource stands "+" if it can be watched, and
// "-" if it can be listed only. A group with the word "away" does not answer.
func served(groups map[string]string) map[string][]string {
	responses := map[string][]string{"GET /api": {`{"kind":"APIVersions","versions":[]}`}}
	var list []string
	for groupVersion, resources := range groups {
		group, version, _ := strings.Cut(groupVersion, "/")
		list = append(list, fmt.Sprintf(`{"name":%q,"versions":[{"groupVersion":%q,"version":%q}],"preferredVersion":{"groupVersion":%q,"version":%q}}`, group, groupVersion, version, groupVersion, version))
		if resources == "away" {
			responses["GET /apis/"+groupVersion] = []string{refusal(503, metav1.StatusReasonServiceUnavailable, "away")}
			continue
		}
		var all []string
		for _, r := range strings.Fields(resources) {
			verbs := `"list","delete","watch"`
			if name, only := strings.CutSuffix(r, "-"); only {
				r, verbs = name+"+", `"list","delete"`
			}
			all = append(all, fmt.Sprintf(`{"name":%q,"kind":"K","namespaced":true,"verbs":[%s]}`, strings.TrimSuffix(r, "+"), verbs))
		}
		responses["GET /apis/"+groupVersion] = []string{fmt.Sprintf(`{"kind":"APIResourceList","groupVersion":%q,"resources":[%s]}`, groupVersion, strings.Join(all, ","))}
	}
	slices.Sort(list)
	responses["GET /apis"] = []string{`{"kind":"APIGroupList","groups":[` + strings.Join(list, ",") + `]}`}
	return responses
}

// TestWhatIsFollowed: resources come and go, and groups are away for a while.
func TestWhatIsFollowed(t *testing.T) {
	for _, test := range []struct {
		what   string
		scans  []map[string]string
		synced bool // the monitors have listed their resources
		want   []string
	}{
		{"all that can be", []map[string]string{{"a/v1": "things+ boxes+", "b/v1": "cups+"}}, true, []string{"things boxes cups"}},
		{"what cannot be watched is not", []map[string]string{{"a/v1": "things+ boxes-"}}, true, []string{"things"}},
		{"events are not", []map[string]string{{"events.k8s.io/v1": "events+", "a/v1": "events+"}}, true, []string{"events.a"}},
		{"a resource comes", []map[string]string{{"a/v1": "things+"}, {"a/v1": "things+ boxes+"}}, true, []string{"things", "things boxes"}},
		{"a resource goes", []map[string]string{{"a/v1": "things+ boxes+"}, {"a/v1": "things+"}}, true, []string{"things boxes", "things"}},
		{"a group goes", []map[string]string{{"a/v1": "things+", "b/v1": "cups+"}, {"a/v1": "things+"}}, true, []string{"things cups", "things"}},
		{"a group is away: what it had is kept", []map[string]string{{"a/v1": "things+", "b/v1": "cups+"}, {"a/v1": "things+", "b/v1": "away"}}, true, []string{"things cups", "things cups"}},
		{"a group is away that was never listed", []map[string]string{{"a/v1": "things+", "b/v1": "cups+"}, {"a/v1": "things+", "b/v1": "away"}}, false, []string{"things cups", "things"}},
		{"a group is away, and another's resource goes", []map[string]string{{"a/v1": "things+ boxes+", "b/v1": "cups+"}, {"a/v1": "things+", "b/v1": "away"}}, true, []string{"things boxes cups", "things cups"}},
		{"nothing is answered: all is kept", []map[string]string{{"a/v1": "things+"}, {"a/v1": "away"}}, true, []string{"things", "things"}},
	} {
		g, heard := collector(t, nil)
		g.monitors = map[schema.GroupVersionResource]*monitor{}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for i, scan := range test.scans {
			heard.mu.Lock()
			heard.responses = served(scan)
			heard.mu.Unlock()
			g.syncMonitors(ctx, &running)
			var got []string
			for gvr, m := range g.monitors {
				name := gvr.Resource
				if name == "events" {
					name += "." + gvr.Group
				}
				got = append(got, name)
				m.synced = func() bool { return test.synced }
			}
			want := strings.Fields(test.want[i])
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("%s, scan %d: %v, want %v", test.what, i, got, want)
			}
		}
		cancel()
		running.Wait()
	}
}

// TestDiscoveryDelay: discovery after changes takes a tenth of the time at most, and is never later than the periodic one.
func TestDiscoveryDelay(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: discoveryDebounce, 10 * time.Millisecond: discoveryDebounce, time.Second: 9 * time.Second, time.Minute: discoveryPeriod,
	} {
		if got := debounceAfter(took); got != want {
			t.Errorf("after %s: %s, want %s", took, got, want)
		}
	}
}

// TestDiscoveryIsAskedSoon when a definition of resources comes, once for many.
func TestDiscoveryIsAskedSoon(t *testing.T) {
	g := &garbageCollector{rediscover: make(chan struct{}, 1)}
	for range 5 {
		g.requestDiscovery()
	}
	select {
	case <-g.rediscover:
	default:
		t.Fatal("it is not asked")
	}
	select {
	case <-g.rediscover:
		t.Error("it is asked twice")
	case <-time.After(time.Millisecond):
	}
}
