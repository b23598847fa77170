/** The three things to try first, each with a button that does it. */

export function guide(root, session, devices, writers, say) {
  const of = (name) => devices.filter((device) => device.person.name === name);
  const channel = (prefix) => session.channels.find((room) => room.id.startsWith(`${prefix}-`)).id;
  const id = (name) => session.person(name).id;
  const [write, open, leave] = root.querySelectorAll("button");

  write.onclick = async () => {
    await writers.write(id("Carol"), channel("general"), { mention: id("Alice") });
    say("Carol wrote in General and mentioned Alice: both of Alice’s devices count one more.");
  };
  open.onclick = () => {
    const [phone] = of("Alice");
    if (!phone.awake) phone.wake();
    phone.open(channel("general"));
    phone.shown?.();
    say("General is open on Alice’s phone, with a red line where the unread began; the laptop is clear as well.");
  };
  leave.onclick = async () => {
    const bob = of("Bob");
    if (bob.some((device) => device.online)) {
      for (const device of bob) device.disconnect();
      leave.textContent = "Bring Bob back";
      await writers.write(id("Dave"), channel("dave-bob"), { text: "Never mind the projector, I found one." });
      await writers.write(id("Carol"), channel("weekend"), { times: 2 });
      say("Bob is offline. Dave and Carol wrote to him: 3 messages, 2 people. His devices know nothing of it yet.");
    } else {
      for (const device of bob) device.connect();
      leave.textContent = "Take Bob offline";
      say("Bob is back: his devices got exactly what they missed, and the badge counts who wrote meanwhile.");
    }
  };
}
