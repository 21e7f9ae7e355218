"""The producer's internals; nothing here is public.

`producer_core` is the common core of `Producer` and `AsyncProducer`: open it first. `sender` carries requests between
the state machines (`transactions`, `records`) and the brokers (`wire`); `admin` has the administrative calls. This
package may import `dualwrite.errors`, `config`, `guarantee` and `prepared_state`, but not the recipes or the emulator.
"""
