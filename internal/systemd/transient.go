package systemd

import (
	"context"
	"errors"
	"fmt"

	"github.com/godbus/dbus/v5"
)

// ErrUnitExists means that a unit of the name is already loaded.
var ErrUnitExists = errors.New("the unit exists already")

// Property is a property of a unit, as systemd.resource-control(5) names it.
type Property struct {
	Name string
	// Value has the type of the property on D-Bus: uint64 for most limits.
	Value any
}

// property is a Property as D-Bus transfers it.
type property struct {
	Name  string
	Value dbus.Variant
}

// auxiliary are the units that could be started together with a transient one; skiff starts none.
type auxiliary struct {
	Name       string
	Properties []property
}

func properties(all []Property) []property {
	encoded := make([]property, 0, len(all))
	for _, p := range all {
		encoded = append(encoded, property{p.Name, dbus.MakeVariant(p.Value)})
	}
	return encoded
}

// StartTransient makes a unit that has no file and starts it. It returns when the unit runs; the error is ErrUnitExists if it does already.
func (m *Manager) StartTransient(ctx context.Context, unit string, with []Property) error {
	if err := m.job(ctx, "StartTransientUnit", unit, "replace", properties(with), []auxiliary{}); err != nil {
		return fmt.Errorf("start %s: %w", unit, err)
	}
	return nil
}

// SetProperties changes the properties of a unit until the host restarts.
func (m *Manager) SetProperties(ctx context.Context, unit string, to []Property) error {
	const runtimeOnly = true
	if err := m.call(ctx, "SetUnitProperties", unit, runtimeOnly, properties(to)); err != nil {
		return fmt.Errorf("set properties of %s: %w", unit, err)
	}
	return nil
}
