package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"skiff/internal/client"
	"skiff/test/inprocess"
)

func TestRequiredLabel(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		"app":                          "",
		"!app":                         "",
		"app!=web":                     "",
		"app in (a,b)":                 "",
		"app notin (a)":                "",
		"app=web":                      "app=web",
		"app==web":                     "app=web",
		"app in (web)":                 "app=web",
		"tier in (a,b),app=web":        "app=web",
		"app=web-frontend,tier=x":      "app=web-frontend",
		"app=x,tier=frontend,!missing": "tier=frontend",
		"app=":                         "app=",
	} {
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if key, value, ok := client.RequiredLabel(selector); ok {
			got = key + "=" + value
		}
		if got != want {
			t.Errorf("%q requires %q, want %q", text, got, want)
		}
	}
	for _, selector := range []labels.Selector{nil, labels.Nothing(), labels.Everything()} {
		if _, _, ok := client.RequiredLabel(selector); ok {
			t.Errorf("%v requires a label", selector)
		}
	}
}

// TestListReadsOnlyLabelled: with the index, List returns the same objects and reads only those with the required label.
func TestListReadsOnlyLabelled(t *testing.T) {
	for _, indexed := range []bool{false, true} {
		t.Run(fmt.Sprint("indexed=", indexed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				c := inprocess.Start(t, ctx)
				informers := client.NewInformers(c)
				configMaps := client.InformerFor[*corev1.ConfigMap](informers)
				if indexed {
					if err := configMaps.EnsureLabelIndex(); err != nil {
						t.Fatal(err)
					}
				}
				go func() { _ = informers.Run(ctx) }()
				for i := range 100 {
					m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("m%02d", i),
						Labels: map[string]string{"app": fmt.Sprint("app", i%20), "tier": fmt.Sprint(i % 2)}}}
					if i%10 == 0 {
						m.Namespace = "kube-system"
					}
					if _, err := client.For[*corev1.ConfigMap](c).Create(ctx, m, client.WriteOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Second)
				synctest.Wait()
				for _, test := range []struct {
					namespace, selector, want string
					reads                     int
				}{
					{"default", "app=app3", "m03 m23 m43 m63 m83", 5},
					{"default", "app=app3,tier=1", "m03 m23 m43 m63 m83", 5},
					{"default", "app=app3,tier=0", "", 5},
					{"default", "app=app0", "", 0},
					{"kube-system", "app=app0", "m00 m20 m40 m60 m80", 5},
					{"default", "app in (app3,app4)", "m03 m04 m23 m24 m43 m44 m63 m64 m83 m84", 90},
					{"", "app=app3", "m03 m23 m43 m63 m83", 100},
				} {
					selector, err := labels.Parse(test.selector)
					if err != nil {
						t.Fatal(err)
					}
					before := informers.ObjectsRead()
					var names []string
					for _, m := range configMaps.List(test.namespace, selector) {
						names = append(names, m.Name)
					}
					slices.Sort(names)
					reads := int(informers.ObjectsRead() - before)
					if got := strings.Join(names, " "); got != test.want || indexed && reads != test.reads {
						t.Errorf("%q in %q: %s with %d reads; want %s with %d", test.selector, test.namespace, got, reads, test.want, test.reads)
					}
				}
				cancel()
				time.Sleep(time.Minute) // let everything finish
			})
		})
	}
}
