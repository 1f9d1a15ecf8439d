package flowcontrol

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/api/flowcontrol"
	"skiff/internal/apiserver/fairness"
	"skiff/internal/client"
	"skiff/test/inprocess"
)

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timed out waiting for " + what)
		}
	}
}

func TestController(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	bootstrapped, configured := make(chan struct{}), make(chan struct{})
	levels := make(chan int, 1000)
	controller := New(Config{
		Client:            c,
		Configure:         func(l PriorityLevels, _ FlowSchemas) { levels <- len(l) },
		DanglingCondition: fairness.Dangling,
		OnBootstrapped:    func() { close(bootstrapped) },
		OnConfigured:      func() { close(configured) },
		WaitReady:         func(context.Context) bool { <-bootstrapped; return true },
		Log:               slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- controller.Run(ctx) }()
	<-bootstrapped
	<-configured
	mandatory, suggested := flowcontrol.Mandatory(), flowcontrol.Suggested()
	want := len(mandatory.PriorityLevels) + len(suggested.PriorityLevels)
	eventually(t, "all priority levels to be configured", func() bool { return <-levels == want })

	// A schema whose priority level does not exist gets a condition, which follows the level.
	schemas, priorityLevels := client.For[*flowcontrolv1.FlowSchema](c), client.For[*flowcontrolv1.PriorityLevelConfiguration](c)
	if _, err := schemas.Create(ctx, &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec:       flowcontrolv1.FlowSchemaSpec{PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "mine"}},
	}, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	dangling := func(status flowcontrolv1.ConditionStatus) func() bool {
		return func() bool {
			schema, err := schemas.Get(ctx, "", "mine")
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(schema.Status.Conditions, func(c flowcontrolv1.FlowSchemaCondition) bool {
				return c.Type == flowcontrolv1.FlowSchemaConditionDangling && c.Status == status
			})
		}
	}
	eventually(t, "the condition Dangling=True", dangling(flowcontrolv1.ConditionTrue))
	level := suggested.PriorityLevels[0].DeepCopy()
	level.ObjectMeta = metav1.ObjectMeta{Name: "mine"}
	if _, err := priorityLevels.Create(ctx, level, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the condition Dangling=False", dangling(flowcontrolv1.ConditionFalse))
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Bootstrap objects that were changed or deleted are restored.
func TestEnsure(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	controller := New(Config{Client: c, Log: slog.New(slog.DiscardHandler)})
	for range 2 {
		if err := controller.ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	name := flowcontrol.Suggested().FlowSchemas[0].Name
	if err := controller.schemas.Delete(t.Context(), "", name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := controller.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := controller.schemas.Get(t.Context(), "", name); err != nil {
		t.Error(err)
	}
}

func TestMayWriteCondition(t *testing.T) {
	controller := &Controller{conditionWrites: map[string][]time.Time{}}
	now := time.Now()
	for i := range maxConditionWrites {
		if !controller.mayWriteCondition("a", now) {
			t.Fatalf("write %d is not allowed", i+1)
		}
	}
	if controller.mayWriteCondition("a", now) {
		t.Error("a write above the limit is allowed")
	}
	if !controller.mayWriteCondition("b", now) {
		t.Error("the limit of one schema counts for another")
	}
	if !controller.mayWriteCondition("a", now.Add(time.Minute+time.Second)) {
		t.Error("no write is allowed a minute later")
	}
}
